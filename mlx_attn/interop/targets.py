"""Export a run to another program: choose the architecture, write it, read it back, compare."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_attn import files
from mlx_attn.arrays import named_arrays
from mlx_attn.errors import RunError
from mlx_attn.interop import mlx_lm, names, standard
from mlx_attn.interop.checkpoints import BOOK_SETTINGS, gpt2_config, read_checkpoint
from mlx_attn.interop.folder import new_folder, write_card, write_folder
from mlx_attn.machine.facts import exact_products
from mlx_attn.model.gpt import GPT
from mlx_attn.runs import LoadedRun
from mlx_attn.sampling.decoding import TokenStep, greedy_tokens

# The comparison of the model that was read back with the one that was written.

_WINDOW = 64
"""Tokens whose logits are compared, at most."""

_GREEDY = 100
"""Greedy tokens that are compared, at most."""

_FAR = 0.01
"""Largest difference, as a share of the largest logit.

Rounding stays below it: 1e-5 in float32 (measured); TF32 rounds each factor of a product by up to
5e-4. A wrong formula exceeds it by far.
"""


@dataclass(frozen=True, slots=True)
class Parity:
    """How far two models agree."""

    logit_difference: float  # the largest absolute one over the window
    largest_logit: float  # the largest absolute one there
    tokens: int  # length of the window
    greedy_equal: int  # equal greedy tokens, generated after a quarter of the window
    greedy: int  # greedy tokens

    def check(self, place: str) -> None:
        """Refuse a model that computes something else.

        Raises:
            RunError: A logit is not finite, or differs by more than `_FAR` of the largest.
        """
        if not self.logit_difference <= _FAR * max(1, self.largest_logit):
            raise RunError(
                f"{place} is not written, because it would not be this model: {self.line}; at most "
                f"{_FAR:g} of the largest logit is rounding. 'mlx-attn verify' shows whether this "
                "machine computes right"
            )

    @property
    def line(self) -> str:
        """The comparison in one line, which `export` prints last."""
        return (
            f"read back: largest logit difference {self.logit_difference:.1e} over "
            f"{self.tokens} tokens, of logits up to {self.largest_logit:.1f}; {self.greedy_equal} "
            f"of {self.greedy} greedy tokens equal"
        )


def _compared(model: GPT, read: GPT) -> Parity:
    """Compare two models: logits of random tokens, and greedy tokens after the first of these."""
    config, rng = model.config, np.random.default_rng(0)
    size = min(_WINDOW, config.context_length)
    window: list[int] = rng.integers(config.vocab_size, size=size).tolist()
    prompt = window[: max(1, len(window) // 4)]
    count = min(_GREEDY, config.context_length - len(prompt))
    tokens = mx.array(window)[None]
    logits, others = (np.array(each(tokens)[0].astype(mx.float32)) for each in (model, read))
    greedy = [greedy_tokens(TokenStep(each), prompt, count) for each in (model, read)]
    return Parity(
        logit_difference=float(np.abs(logits - others).max()),
        largest_logit=float(np.abs(logits).max()),
        tokens=len(window),
        greedy_equal=sum(a == b for a, b in zip(*greedy, strict=True)),
        greedy=count,
    )


# The export.


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    path: Path  # the folder
    route: str  # one line about the architecture that holds the model, and why
    parity: Parity  # the comparison with the model that was read back
    install: str  # the command that the program's environment needs first; empty if none


Target = Callable[[LoadedRun, Path], str]
"""Writes a run to a folder for a program; returns the route."""


@exact_products()
def export_run(loaded: LoadedRun, target: Target, out: Path, overwrite: bool = False) -> Exported:
    """Write a run's best weights to a folder for another program, read them back and compare.

    Raises:
        ConfigError: The target cannot hold this model; the message lists the reasons.
        RunError: Files cannot be read or written, `out` must not be replaced, or the model that was
            read back computes other logits; then `out` stays as it was.
    """
    with new_folder(out, overwrite) as place:
        route = target(loaded, place)
        parity = _compared(loaded.model, read_checkpoint(place).model)
        parity.check(str(out))
        write_card(loaded, place, route, parity.line)
        has_code = (place / mlx_lm.MODEL_FILE).exists()
    return Exported(out, route, parity, mlx_lm.install_line() if has_code else "")


# The targets.


def _write_gpt2(loaded: LoadedRun, out: Path) -> str:
    """Write GPT-2 for transformers; mlx-lm also reads it if the head is tied."""
    form = standard.gpt2_form(loaded.model, "gpt2")
    write_folder(loaded, out, gpt2_config(form.config), names.to_gpt2(named_arrays(form)))
    also = "" if mlx_lm.is_its_gpt2(form.config) else f"; not for mlx-lm: {_MLX_LM_GPT2}"
    return f"GPT-2, {standard.how_written(loaded.model, form)}{also}"


_MLX_LM_GPT2 = "its GPT-2 has a tied head, and a feed-forward layer of width 4 emb_dim"


def _write_mlx_lm(loaded: LoadedRun, out: Path) -> str:
    """Write GPT-2 if that is exact, else a folder whose model file computes with this package."""
    try:
        form = standard.gpt2_form(loaded.model, "mlx-lm")
        reason = "" if mlx_lm.is_its_gpt2(form.config) else _MLX_LM_GPT2
    except standard.CannotHold as error:
        reason = error.reason
    if not reason:
        return _write_gpt2(loaded, out)
    config = loaded.model.config
    write_folder(loaded, out, mlx_lm.folder_config(config), named_arrays(loaded.model))
    for name, content in mlx_lm.folder_code(config).items():
        files.write_bytes(out / name, content)
    return f"{mlx_lm.MODEL_FILE}, which needs mlx_attn beside mlx-lm: {reason}"


def _write_book(loaded: LoadedRun, out: Path) -> str:
    """Write the state dict of the book's GPTModel, and the settings that it is made with."""
    form = standard.gpt2_form(loaded.model, "book")
    if form.config.hidden_dim != 4 * form.config.emb_dim:
        reasons = [f"hidden_dim={form.config.hidden_dim}, and the book's is 4 emb_dim"]
        raise standard.CannotHold("book", "its GPTModel", reasons)
    arrays = named_arrays(form)
    biases = {name for name in arrays if ".W_" in name and name.endswith(".bias")}
    with_bias = any((arrays[name] != 0).any().item() for name in biases)
    ours = {name: array for name, array in arrays.items() if with_bias or name not in biases}
    settings = {key: getattr(form.config, key) for key in BOOK_SETTINGS}
    settings |= {"drop_rate": 0.0, "qkv_bias": with_bias}
    write_folder(loaded, out, {"architectures": ["GPTModel"], **settings}, names.to_book(ours))
    return f"the book's GPTModel({settings}), {standard.how_written(loaded.model, form)}"


TARGETS: Mapping[str, Target] = {
    "mlx-lm": _write_mlx_lm,
    "gpt2": _write_gpt2,
    "book": _write_book,
}
