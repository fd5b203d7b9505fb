"""Export a run to another program: choose the architecture, write it, read it back, compare."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlx_attn import files
from mlx_attn.arrays import named_arrays
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.interop import mlx_lm, names, parity, standard
from mlx_attn.interop.checkpoints import gpt2_config, read_checkpoint
from mlx_attn.interop.folder import is_exported_folder, new_folder, write_card, write_folder
from mlx_attn.machine.facts import exact_products
from mlx_attn.model.config import GPTConfig
from mlx_attn.runs import LoadedRun


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    path: Path  # the folder
    route: str  # one line about the architecture that holds the model, and why
    parity: parity.Parity  # the comparison with the model that was read back
    install: str  # the command that the program's environment needs first; empty if none

    def record(self) -> dict[str, Any]:
        """Return all of it as one JSON object."""
        return {**asdict(self), "path": str(self.path)}


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
    _check_free(out, overwrite)
    with new_folder(out) as place:
        route = target(loaded, place)
        agreement = parity.compare(loaded.model, read_checkpoint(place).model)
        agreement.check(str(out))
        write_card(loaded, place, route, agreement)
        has_code = (place / mlx_lm.MODEL_FILE).exists()
    return Exported(out, route, agreement, mlx_lm.install_line() if has_code else "")


def _check_free(out: Path, overwrite: bool) -> None:
    """Refuse a path that an export must not replace."""
    if not out.exists():
        return
    reason = ""
    if not out.is_dir():
        reason = "is a file, and an export is a folder:"
    elif not overwrite:
        reason = "exists: --overwrite replaces it,"
    elif not is_exported_folder(out):
        reason = "was not written by export, so --overwrite leaves it alone:"
    if reason:
        raise RunError(f"{out} {reason} --out names another place")


# The targets.


def _write_gpt2(loaded: LoadedRun, out: Path) -> str:
    """Write GPT-2 for transformers; mlx-lm also reads it if the head is tied."""
    form = standard.gpt2_form(loaded.model, "gpt2")
    write_folder(loaded, out, gpt2_config(form.config), names.to_gpt2(named_arrays(form)))
    also = "" if _fits_mlx_lm(form.config) else f"; not for mlx-lm: {_MLX_LM_GPT2}"
    return f"GPT-2, {standard.how_written(loaded.model, form)}{also}"


_MLX_LM_GPT2 = "its GPT-2 has a tied head, and a feed-forward layer of width 4 emb_dim"


def _fits_mlx_lm(config: GPTConfig) -> bool:
    return config.tied_head and config.hidden_dim == 4 * config.emb_dim


def _write_mlx_lm(loaded: LoadedRun, out: Path) -> str:
    """Write GPT-2 if that is exact, else a folder whose model file computes with this package."""
    try:
        form = standard.gpt2_form(loaded.model, "mlx-lm")
        reason = "" if _fits_mlx_lm(form.config) else _MLX_LM_GPT2
    except ConfigError as error:
        reason = str(error).removeprefix("--to mlx-lm: ").partition("; '--to")[0]
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
        raise standard.refused("book", "its GPTModel", reasons)
    arrays = named_arrays(form)
    biases = {name for name in arrays if ".W_" in name and name.endswith(".bias")}
    with_bias = any((arrays[name] != 0).any().item() for name in biases)
    dropped = set() if with_bias else biases
    ours = {name: array for name, array in arrays.items() if name not in dropped}
    sizes = ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers")
    settings = {key: getattr(form.config, key) for key in sizes}
    settings |= {"drop_rate": 0.0, "qkv_bias": with_bias}
    write_folder(loaded, out, {"architectures": ["GPTModel"], **settings}, names.to_book(ours))
    return f"the book's GPTModel({settings}), {standard.how_written(loaded.model, form)}"


TARGETS: Mapping[str, Target] = {
    "mlx-lm": _write_mlx_lm,
    "gpt2": _write_gpt2,
    "book": _write_book,
}
