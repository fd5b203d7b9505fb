"""Choices outside the maps of attention, by the setting that names them: norms, blocks, texts.

A row of this program has a formula, and the room that reads the setting computes it. A user's row
also has the function, and that room calls it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature, unwrap
from pathlib import Path
from typing import Any

from mlx_attn.errors import ConfigError
from mlx_attn.records import package_table


def file_of(functions: Iterable[Callable[..., Any]]) -> Path:
    """Return the file that the first of these functions with Python code was defined in."""
    codes = (getattr(function, "__code__", None) for function in functions)
    return Path(next((code.co_filename for code in codes if code), "<unknown>")).absolute()


_ARGUMENTS = {
    "norm": ("x, or for a class c",),
    "activation": ("x, or for a class c",),
    "residual": ("x", "attention", "feed_forward", "norm1", "norm2"),
    "optimizer": ("c",),
    "metric": ("logits", "targets"),
    "data": (),
}
"""The arguments of each setting's functions; `position` belongs to the attention layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A choice of a setting outside the maps of attention.

    Attributes:
        map: The setting that names it, one of `PARTS`.
        name: The word in a configuration.
        formula: In the field's letters, or one line about it.
        source: The paper or book section.
        apply: The user's function; None for a row of this program.

            - `norm(x) -> x` or `activation(h) -> h`, or a class of `nn.Module` for either, which is
              made with the `GPTConfig`.
            - `residual(x, attention, feed_forward, norm1, norm2) -> x` is a block, whose other
              arguments are functions [B, T, C] -> [B, T, C]; or likewise a class.
            - `optimizer(c)` returns an optimizer of MLX for the `TrainConfig`.
            - `data()` yields a text in parts. With `length`, `data(random, count, **sizes)` draws
              the `Documents` of a task.
            - `metric(logits, targets)` returns a number for each target, [1, N].
        claims: For an optimizer: `claims(name, array)` tells which parameters it moves; AdamW moves
            the others.
        sizes: For a task: arguments of its function.
        length: For a task: symbols of a document.
        steps: For a task: the steps of a training that names no others.
    """

    map: str
    name: str
    formula: str
    source: str = ""
    apply: Callable[..., Any] | None = None
    claims: Callable[[str, Any], bool] = lambda name, array: True
    sizes: Mapping[str, Any] = field(default_factory=dict)
    length: int = 0
    steps: int = 500

    def __post_init__(self):
        if self.apply is None:
            return
        arguments = ("random", "count") if self.length else _ARGUMENTS[self.map]
        arguments = ("c",) if isinstance(self.apply, type) and not self.length else arguments
        try:
            signature(self.apply).bind(*arguments, **self.sizes)
        except TypeError as error:
            words = ", ".join([*arguments, *(f"{key}=" for key in self.sizes)]) or "no arguments"
            raise ConfigError(
                f"{self.map}={self.name} is called with {words}, and cannot be: {error}"
            ) from error

    @property
    def is_built_in(self) -> bool:
        """Return True if it is a row of this program."""
        return self.apply is None

    @property
    def file(self) -> Path:
        """The file that a user's row was defined in, or the name that Python has for none."""
        parts = [*vars(self.apply).values()] if isinstance(self.apply, type) else [self.apply]
        return file_of(unwrap(part) for part in parts if callable(part))

    def made(self, config: Any) -> Callable[..., Any]:
        """Return the user's function, or a module of the user's class."""
        assert self.apply
        return self.apply(config) if isinstance(self.apply, type) else self.apply


_BUILT_IN = {
    "position": {
        "learned": "x_i + P_i",
        "alibi": "score(i, j) - slope_h (i - j)",
        "rope": "q_i R^i, k_j R^j",
        "none": "no positions",
    },
    "norm": {
        "layernorm": "(x - mean x) / sqrt(var x + eps) * weight + bias",
        "rmsnorm": "x / sqrt(mean x^2 + eps) * weight",
    },
    "activation": {"gelu": "x Phi(x)", "relu2": "max(0, x)^2"},
    "residual": {"pre_norm": "x + att(norm1 x), then x + ff(norm2 x)"},
    "optimizer": {"adamw": "W - lr (m / (sqrt(v) + eps) + decay W)", "muon": "W - lr orth(u)"},
    "metric": {},
    "data": {},
}

PARTS: dict[str, dict[str, Any]] = {
    key: {name: Part(map=key, name=name, formula=formula) for name, formula in rows.items()}
    for key, rows in _BUILT_IN.items()
}
"""Every row by setting and name; a user's position is a `Choice` of the attention layer."""


def taken_names(key: str) -> Iterable[str]:
    """Return the names that a user's row of this setting cannot have."""
    if key != "data":
        return PARTS[key]
    tasks, corpora = (package_table("mlx_attn.text", name) for name in ("tasks", "corpora"))
    return ["tales", *tasks["tasks"], *corpora, *PARTS["data"]]


def own_part(key: str, name: str) -> Part | None:
    """Return the user's row of that name; None for a row of this program, or no row."""
    row = PARTS[key].get(name)
    return row if row and not row.is_built_in else None
