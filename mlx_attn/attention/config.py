"""What one attention layer is: sizes, a choice for every map, positions.

A configuration is a value that can be written to a file. It is checked once, here; the modules
built from it never check again. The choices themselves are in `mlx_attn.attention.maps`, which
registers them when it is imported, as a user's file does.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from typing import Any

from mlx_attn.errors import ConfigError
from mlx_attn.keys import check_bounds, check_choices, setting

POSITIONS = ("learned", "alibi", "rope", "none")
"""The package's positions; a user's are choices."""

WORDS: dict[str, Collection[str]] = {
    "short_conv": ("none", "linear", "silu"),
}
MAPS = {
    "score": "separate",
    "value": "linear",
    "output": "linear",
    "logits": "none",
    "mixing": "softmax",
}
"""What a variant chooses, three maps and two hooks between score and value, with the standard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice of a map: its formula, its trained weights and its function.

    Functions of a configuration are called with an `AttentionConfig`, functions of a layer with an
    `Attention`, whose attributes hold the weights by name.

    Attributes:
        map: The map of this choice, one of `MAPS`, or "position".
        name: The word in a configuration.
        formula: In the field's letters.
        source: The paper or book section.
        apply: Computes the map: `score(a, x) -> q, k`; `value(a, x, k) -> v`;
            `output(a, heads, x) -> y`; `logits(a, s) -> s`; `mixing(a, s) -> weights`, with
            `mixing(a, s, q, k, kept)` if it reads keys and remembers. For a position
            `position(a, y, positions) -> y`, applied to queries and to keys.
        weights: Makes each trained part by name: a Linear layer, an array, or None if a
            configuration needs none.
        init: Starting weights by name, if they are not drawn like other Linear layers. Of these,
            "out_proj" ends a branch.
        shape: For a score or value map: the number of heads of its keys or values, and their width,
            if these are not n_kv_heads of head_dim or value_dim.
        after: For a value map: the same map applied to softmax_h x, which gives the same heads.
        cache: The cache entries of a token: "kv" key and value; "k" only the key, which the value
            map reads; "x" only the key, which is x. If score or value keep only the key, so does
            the layer.
        affine: For a score, value or output map: it is linear up to a bias, as conversions and
            spectra need. This and the next four facts are tested on a user's choice.
        sums_to_one: For a mixing: the weights of every query add up to 1, so that values may be
            computed after the weighted sum and their bias is a constant.
        shift_invariant: For a logits map or mixing: a constant added to all scores of a query
            changes no weight, so that the key's bias cancels.
        reads_keys: For a value map: it computes values from keys. For a mixing: it reads the
            queries and keys, and not only their scores.
        score_factor: For a logits map that only multiplies the scores of each attention map: these
            factors, so that W_query can absorb them.
        input_weights: The weights that multiply x, if nothing else reads x: they can absorb the
            gain of the norm before. None: x is read in another way.
        same_as: The choice of the same map that it equals, with its whole matrix.
        queries_per_head: For a score map: query heads for each head.
        multiply_adds: Per token at full context, in addition to its matrices, the scores and the
            weighted sum.
        carries: For a score or value map: it reads arrays of earlier layers, as
            `score(a, x, carry)` or `value(a, x, k, carry)`.
        remembers: For a logits map or mixing: numbers of x that decoding also caches,
            [B, heads, T, width]; the map receives the numbers of all tokens as its last argument.
        recurs: For a mixing: the same heads from a state of fixed size, `recurs(a, q, k, v, kept,
            state) -> heads, state`, without `kept` if it remembers nothing, and with None at the
            start of a text. Decoding then caches the state, one array, and no tokens.
        remembers_all: It needs the memory of all earlier tokens even if a window hides their keys.
            The layer's cache then holds all of them.
        refuses: Why a configuration cannot use it, and the way out; empty if it can.
    """

    map: str
    name: str
    formula: str
    source: str = ""
    apply: Callable[..., Any]
    weights: Mapping[str, Callable[["AttentionConfig"], Any]] = field(default_factory=dict)
    init: Callable[["AttentionConfig", Callable[..., Any]], Mapping[str, Any]] | None = None
    shape: Any = None  # a function of the configuration; None is replaced by the standard one
    after: Callable[..., Any] | None = None
    cache: str = "kv"
    affine: bool = True
    sums_to_one: bool = False
    shift_invariant: bool = False
    reads_keys: bool = False
    score_factor: Callable[[Any], Any] | None = None
    input_weights: tuple[str, ...] | None = None
    same_as: str = ""
    queries_per_head: int = 1
    multiply_adds: Callable[["AttentionConfig"], int] = lambda config: 0
    carries: bool = False
    remembers: Callable[..., Any] | None = None
    recurs: Callable[..., Any] | None = None
    remembers_all: bool = False
    refuses: Callable[["AttentionConfig"], str] = lambda config: ""

    def __post_init__(self):
        check_choices(self, {"map": (*MAPS, "position"), "cache": ("kv", "x", "k")})
        if self.shape is None:
            object.__setattr__(self, "shape", _value_shape if self.map == "value" else _key_shape)

    @property
    def makes_values_from_keys(self) -> bool:
        """Return True if its values change with the keys."""
        return self.reads_keys or self.cache == "k"

    @property
    def is_built_in(self) -> bool:
        """Return True if all its functions are the package's own."""
        return not self._foreign

    @property
    def file(self) -> Path:
        """The file that a user's choice was defined in, or the name that Python has for none."""
        codes = (getattr(function, "__code__", None) for function in self._foreign)
        return Path(next((code.co_filename for code in codes if code), "<unknown>")).absolute()

    @property
    def _foreign(self) -> list[Callable[..., Any]]:
        facts = (self.apply, self.init, self.after, self.remembers, self.recurs)
        own = (unwrap(function) for function in (*facts, *self.weights.values()) if function)
        return [function for function in own if not function.__module__.startswith("mlx_attn.")]


def _key_shape(config: "AttentionConfig") -> tuple[int, int]:
    return config.n_kv_heads, config.head_dim


def _value_shape(config: "AttentionConfig") -> tuple[int, int]:
    return config.n_kv_heads, config.value_dim


CHOICES: dict[str, dict[str, Choice]] = {name: {} for name in (*MAPS, "position")}
"""Every registered choice by map and name; of positions only a user's."""


TRIALS: list[Callable[[Any], None]] = []
"""Called with every new layer that has a user's choices, before it computes; see `laws`."""


def choice_of(map_name: str, name: str) -> Choice:
    """Return the named choice of a map.

    Raises:
        ConfigError: No choice has that name; the message lists all names.
    """
    table = choices_of(map_name)
    if name not in table:
        raise ConfigError(f"{map_name}='{name}' must be one of {', '.join(table)}")
    return table[name]


def choices_of(map_name: str) -> Mapping[str, Choice]:
    """Return every choice of a map by name, the package's and the user's."""
    import_forms()
    return CHOICES[map_name]


def import_forms() -> None:
    """Import the package's choices and the field's variants, which register themselves."""
    # By name and late: they import this module, and MLX, which `--help` does without.
    import_module("mlx_attn.attention.forms")


def positions() -> tuple[str, ...]:
    """Return every position, the package's and the user's."""
    return (*POSITIONS, *CHOICES["position"])


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSettings:
    """The settings of attention that a layer and a whole model have. Every `help` is its meaning.

    Sizes with the value 0 are derived and stored: head_dim, value_dim, n_kv_heads, latent_dim and
    scale. Separate and merged forms have one scale, so that converted models keep their scores;
    heads that share keys are grouped-query attention (arXiv:2305.13245).
    """

    n_heads: int = setting(1, "attention heads")
    drop_rate: float = setting(0.0, "dropout of embeddings, attention weights and branches")
    qkv_bias: bool = setting(False, "biases in the query, key and value maps")
    n_kv_heads: int = setting(0, "key and value heads: fewer than n_heads is GQA, 1 is MQA")
    head_dim: int = setting(0, "width of one head (0: emb_dim / n_heads)")
    value_dim: int = setting(0, "width of one value head (0: head_dim)")
    scale: float = setting(0.0, "factor of the attention scores (0: 1 / sqrt(head_dim))")
    score: str = setting("separate", "score map; `mlx-attn variants --choices` lists all")
    value: str = setting("linear", "value map: how x becomes values")
    output: str = setting("linear", "output map: how heads become the output")
    logits: str = setting("none", "map of the scores before the softmax; several as a+b")
    mixing: str = setting("softmax", "how logits become attention weights")
    latent_dim: int = setting(0, "width of the latent of score latent (0: emb_dim / 2)")
    window: int = setting(0, "tokens that a token sees, itself included (0: all earlier ones)")
    position: str = setting("learned", "positions: learned, alibi, rope or none")
    qk_norm: bool = setting(False, "RMS-normalise queries and keys")
    short_conv: str = setting(
        "none", "convolution of queries, keys and values over 4 tokens: none, linear or silu"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig(AttentionSettings):
    """Sizes and choices of one causal attention layer.

    Attributes:
        d_in: Width C of the input.
        d_out: Width of the output.
        context_length: Longest sequence T.
        out_bias: Whether the output map has a bias.
        residual_gain: Scale an output without a map by one trained number.
        cross_layer: "source" if later layers read this layer's keys and values, "reader" if it
            reads those of an earlier layer and has none itself (arXiv:2405.12981), else "".
    """

    d_in: int
    d_out: int
    context_length: int
    out_bias: bool = True
    residual_gain: bool = False
    cross_layer: str = ""

    def __post_init__(self):
        sizes = ("d_in", "d_out", "context_length", "n_heads")
        check_bounds(self, dict.fromkeys(sizes, (1, math.inf)))
        self._derive_sizes()
        check_choices(self, WORDS | {"position": positions()})
        self._check_sizes()
        self._check_combination()  # last, because a choice reads the derived sizes

    def _derive_sizes(self) -> None:
        """Fill in the sizes that are 0 from the others."""
        _require(
            bool(self.head_dim) or self.d_out % self.n_heads == 0,
            f"emb_dim={self.d_out} must be a multiple of n_heads={self.n_heads}: "
            "change one of them, or set head_dim",
        )
        head_dim = self.head_dim or self.d_out // self.n_heads
        derived = {
            "head_dim": head_dim,
            "value_dim": head_dim,
            "n_kv_heads": self.n_heads,
            "latent_dim": max(self.d_in // 2, 1),
            # The variance of q . k grows with head_dim; this keeps the scores' spread near 1.
            "scale": max(head_dim, 1) ** -0.5,
        }
        for key, value in derived.items():
            object.__setattr__(self, key, getattr(self, key) or value)

    def _check_sizes(self) -> None:
        _require(0 <= self.drop_rate < 1, f"drop_rate={self.drop_rate} must be in [0, 1)")
        widths = dict.fromkeys(("head_dim", "value_dim", "latent_dim"), (1, math.inf))
        check_bounds(self, {**widths, "window": (0, math.inf)})
        _require(
            self.n_kv_heads >= 1 and self.n_heads % self.n_kv_heads == 0,
            f"n_heads={self.n_heads} must be a multiple of n_kv_heads={self.n_kv_heads}",
        )

    def _check_combination(self) -> None:
        """Raise a ConfigError if a choice refuses the sizes, or the other choices."""
        # Merged scores rotate the whole of x as the key.
        rotated = self.d_in if self.score == "merged" else self.head_dim
        _require(
            self.position != "rope" or rotated % 2 == 0,
            f"rope rotates pairs of coordinates, and the width {rotated} is odd: use an even one",
        )
        choices = [choice for name in (*MAPS, "position") for choice in self.choices(name)]
        for choice in choices:
            _require(not (reason := choice.refuses(self)), reason)
        # Decoding must not compute convolved keys and values again from what it caches.
        later = [f"{c.map}={c.name}" for c in choices if c.cache != "kv"]
        later += ["output=merged"] if self.output == "merged" else []
        _require(
            self.short_conv == "none" or not later,
            f"short_conv={self.short_conv} mixes the keys and values of tokens, and "
            f"{' and '.join(later)} caches what comes before them: use maps that cache keys and "
            "values, such as score=separate and value=linear",
        )

    def choices(self, map_name: str) -> tuple[Choice, ...]:
        """Return the choices of a map: one; several logits hooks; a user's position or nothing."""
        words = getattr(self, map_name)
        if map_name == "position":
            return (CHOICES["position"][words],) if words in CHOICES["position"] else ()
        if map_name == "logits":
            return tuple(choice_of("logits", word) for word in words.split("+") if word != "none")
        return (choice_of(map_name, words),)

    @property
    def n_maps(self) -> int:
        """Attention maps: one for each head, or as many as a head has queries."""
        return self.n_heads * choice_of("score", self.score).queries_per_head

    @property
    def has_hooks(self) -> bool:
        """Return True if a hook changes scores or weights."""
        return any(getattr(self, name) != MAPS[name] for name in ("logits", "mixing"))

    @property
    def is_affine(self) -> bool:
        """Return True if score, value and output are linear up to a bias, token by token."""
        maps = ("score", "value", "output")
        mixes_tokens = self.short_conv != "none" or self.cross_layer == "reader"
        return not mixes_tokens and all(
            choice.affine for name in maps for choice in self.choices(name)
        )

    @property
    def rotates(self) -> bool:
        """Return True if queries and keys change with their positions, as by RoPE."""
        return self.position == "rope" or bool(self.choices("position"))

    @property
    def recurs(self) -> bool:
        """Return True if decoding caches a state of fixed size and no tokens."""
        return self.choices("mixing")[0].recurs is not None

    @property
    def caches_tokens(self) -> bool:
        """Return True if decoding caches something of each token in this layer."""
        return not self.recurs and self.cross_layer != "reader"

    @property
    def cache_window(self) -> int:
        """Tokens that decoding keeps: the window, or 0 for all if a hook needs all of them."""
        hooks = (*self.choices("logits"), *self.choices("mixing"))
        return 0 if any(hook.remembers_all for hook in hooks) else self.window

    def slopes(self) -> tuple[float, ...]:
        """Return ALiBi's slope of every head: 2^-2 to 2^-8, for any number of heads.

        The paper's slopes (arXiv:2108.12409) depend on that number, so that models with different
        numbers of heads would also differ in their positions.
        """
        return tuple(2 ** -(2 + 6 * h / max(self.n_heads - 1, 1)) for h in range(self.n_heads))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
