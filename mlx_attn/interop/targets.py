"""Export a run to another program: choose the architecture, write it, and check the result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlx_attn import files
from mlx_attn.arrays import load_arrays, named_arrays
from mlx_attn.convert.model import written_out
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.interop import names, parity, shipped, standard
from mlx_attn.interop.folder import (
    WEIGHTS,
    gpt2_config,
    is_exported_folder,
    new_folder,
    read_gpt2,
    write_card,
    write_folder,
)
from mlx_attn.interop.gguf import gguf_form, is_exported_gguf, read_gguf, write_gguf
from mlx_attn.interop.torch_archive import is_exported_checkpoint, read_checkpoint, write_checkpoint
from mlx_attn.model.config import GPTConfig, own_parts
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.generate import LoadedRun


@dataclass(frozen=True, slots=True)
class _Written:
    """The result of a target's writer."""

    route: str  # one line about the architecture that holds the model, and why
    back: GPT | None  # the model read back; None if only the code that was written reads it
    peers: tuple[str, ...] = ()  # other programs that read it too, if they are installed
    facts: Mapping[str, float] = field(default_factory=dict)  # further arguments for these programs


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    path: Path  # the file or folder
    route: str  # one line about the architecture that holds the model, and why
    parities: tuple[parity.Parity, ...]  # a comparison with each program that read it back
    unread: tuple[str, ...]  # a line for each program that could not read it, with the reason

    def record(self) -> dict[str, Any]:
        """Return all of it as one JSON object."""
        facts = [{key: getattr(p, key) for key in p.__slots__} for p in self.parities]
        record = {"path": str(self.path), "route": self.route, "parity": facts}
        return {**record, "unread": list(self.unread)}


@dataclass(frozen=True, slots=True)
class Target:
    """A program to write for."""

    name: str  # on the command line
    suffix: str  # of the file; empty for a folder
    write: Callable[[LoadedRun, Path], _Written]  # writes a run to a path
    # Returns True for what an earlier export wrote.
    is_exported: Callable[[Path], bool] = is_exported_folder


def _check_free(target: Target, out: Path, overwrite: bool) -> None:
    """Refuse a path that an export must not replace."""
    files.check_links(out)
    elsewhere = "--out names another place"
    if not target.suffix and files.holds_current_folder(out):
        raise RunError(f"{out} is the folder that you are in, or a parent of it: {elsewhere}")
    if not out.exists():
        return
    if target.suffix and out.is_dir():
        raise RunError(f"{out} is a folder, and this target is one file: --out names a file")
    if not target.suffix and not out.is_dir():
        raise RunError(f"{out} is a file, and this target is a folder: {elsewhere}")
    if not overwrite:
        raise RunError(f"{out} exists: --overwrite replaces it, {elsewhere}")
    is_special = bool(target.suffix) and not out.is_file()  # reading a pipe would block
    if is_special or not target.is_exported(out):
        raise RunError(
            f"{out} was not written by export, so --overwrite leaves it alone: {elsewhere}"
        )


def export_run(loaded: LoadedRun, target: Target, out: Path, overwrite: bool = False) -> Exported:
    """Write a run's best weights for another program, load them again and compare.

    Raises:
        ConfigError: The target cannot hold this model; the message lists the reasons.
        RunError: Files cannot be read or written, `out` must not be replaced, or a program computes
            other logits; then `out` stays as it was.
    """
    _check_free(target, out, overwrite)
    config = loaded.model.config
    own = [*own_parts(config), *(row for c in config.kinds() for row in c.choices("position"))]
    if own:
        row = own[0]
        raise ConfigError(f"{row.map}={row.name} is of a plugin, and no other program has it")
    with files.atomic_write(out) if target.suffix else new_folder(out) as place:
        written = target.write(loaded, place)
        reference = parity.Reference(loaded.model, loaded.tokenizer)
        parities, unread = list[parity.Parity](), list[str]()
        for name in filter(parity.interpreter, written.peers):
            try:
                parities.append(reference.compare_peer(name, place, **written.facts))
            except RunError as error:  # the program cannot load it
                unread.append(str(error).replace(str(place), str(out)))
        if written.back:
            parities.append(reference.compare_model(written.back))
        else:
            parities.append(reference.compare_peer("mlx", place))
        for each in parities:
            each.check(str(out))
        if not target.suffix:
            write_card(loaded, place, out.name, written.route, parities)
    return Exported(out, written.route, tuple(parities), tuple(unread))


# The targets.


def _write_gpt2(loaded: LoadedRun, out: Path) -> _Written:
    """Write a GPT-2 folder for transformers; mlx-lm also reads it if the head is tied."""
    form = standard.gpt2_form(loaded.model, "gpt2")
    stock = _fits_mlx_lm(form.config)
    write_folder(loaded, out, gpt2_config(form.config), names.to_gpt2(named_arrays(form)))
    also = "" if stock else f"; not for mlx-lm: {_MLX_LM_GPT2}"
    back = read_gpt2(out)
    readers = (*(["mlx-lm"] if stock else []), "transformer-lens", "transformers")
    return _Written(f"GPT-2, {standard.how_written(loaded.model, form)}{also}", back, readers)


_MLX_LM_GPT2 = "its GPT-2 has a tied head, and a feed-forward layer of width 4 emb_dim"


def _fits_mlx_lm(config: GPTConfig) -> bool:
    return config.tied_head and config.hidden_dim == 4 * config.emb_dim


def _write_mlx_lm(loaded: LoadedRun, out: Path) -> _Written:
    """Write a folder for mlx-lm: GPT-2 if that is exact, else with code."""
    try:
        form = standard.gpt2_form(loaded.model, "mlx-lm")
        reason = "" if _fits_mlx_lm(form.config) else _MLX_LM_GPT2
    except ConfigError as error:
        reason = str(error).removeprefix("--to mlx-lm: ").partition("; '--to")[0]
    if not reason:
        return _write_gpt2(loaded, out)
    model = written_out(loaded.model)
    texts, config, obstacle = shipped.shipped_files(model)
    write_folder(loaded, out, config, named_arrays(model))
    for file, text in texts.items():
        files.write_text(out / file, text)
    if obstacle:
        route = f"{shipped.MLX_FILE}: {reason}; without {shipped.TORCH_FILE}, because {obstacle}"
        return _Written(f"code of its own, {route}", None, ("mlx-lm",))
    route = f"code of its own, {shipped.MLX_FILE} and {shipped.TORCH_FILE}: {reason}"
    return _Written(route, None, ("transformers", "mlx-lm"))


def _write_book(loaded: LoadedRun, out: Path) -> _Written:
    """Write the state dict of the book's GPTModel."""
    form = standard.gpt2_form(loaded.model, "book")
    if form.config.hidden_dim != 4 * form.config.emb_dim:
        reasons = [f"hidden_dim={form.config.hidden_dim}, and the book's is 4 emb_dim"]
        raise standard.refused("book", "its GPTModel", reasons, "train with hidden_dim=0")
    arrays = named_arrays(form)
    biases = {name for name in arrays if ".W_" in name and name.endswith(".bias")}
    with_bias = any((arrays[name] != 0).any().item() for name in biases)
    dropped = set() if with_bias else biases
    ours = {name: array for name, array in arrays.items() if name not in dropped}
    write_checkpoint(out, names.to_book(ours))
    sizes = ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers")
    config = {key: getattr(form.config, key) for key in sizes}
    settings = {**config, "drop_rate": 0.0, "qkv_bias": with_bias}
    route = f"the book's GPTModel({settings}), {standard.how_written(loaded.model, form)}"
    stored = GPTConfig(**config, qkv_bias=with_bias, tied_head=False)
    back = standard.model_of(stored, names.from_book(read_checkpoint(out)))
    return _Written(route, back, ("torch",), {"n_heads": config["n_heads"]})


def _write_transformer_lens(loaded: LoadedRun, out: Path) -> _Written:
    """Write weights and HookedTransformerConfig, whose heads may have any width."""
    config = loaded.model.config
    width = max(*standard.widths(config), 1)
    form = standard.standard_form(
        *(loaded.model, "transformer-lens", "HookedTransformer", standard.GPT2, width),
        position="learned",
    )
    settings = {
        "n_layers": config.n_layers,
        "d_model": config.emb_dim,
        "n_ctx": config.context_length,
        "d_head": width,
        "n_heads": config.n_heads,
        "d_mlp": config.hidden_dim,
        "d_vocab": config.vocab_size,
        "act_fn": "gelu_new",
        "normalization_type": "LN",
        "eps": 1e-5,
        "attn_scale": width**0.5,
        "model_name": loaded.name,
    }
    arrays = names.to_transformer_lens(named_arrays(form), config.n_heads)
    write_folder(loaded, out, settings, arrays)
    (out / "generation_config.json").unlink()
    ours = names.from_transformer_lens(load_arrays(out / WEIGHTS)[0])
    back = standard.model_of(replace(form.config, tied_head=False), ours)
    route = f"HookedTransformer, heads of {width}, {standard.how_written(loaded.model, form)}"
    return _Written(route, back, ("transformer-lens",))


def _write_gguf(loaded: LoadedRun, out: Path) -> _Written:
    """Write one file: GPT-2, or arcee for RoPE, RMSNorm and squared ReLU."""
    architecture, form = gguf_form(loaded.model)
    write_gguf(out, architecture, form, loaded.tokenizer, loaded.name)
    peers = ("llama.cpp", *(["transformers"] if architecture == "gpt2" else []))
    route = f"GGUF of the architecture {architecture}, {standard.how_written(loaded.model, form)}"
    return _Written(route, read_gguf(out), peers)


TARGETS: dict[str, Target] = {
    row.name: row
    for row in (
        Target("mlx-lm", "", _write_mlx_lm),
        Target("gpt2", "", _write_gpt2),
        Target("gguf", ".gguf", _write_gguf, is_exported_gguf),
        Target("book", ".pth", _write_book, is_exported_checkpoint),
        Target("transformer-lens", "", _write_transformer_lens),
    )
}
