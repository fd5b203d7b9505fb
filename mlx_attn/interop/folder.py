"""Read and write folders for transformers and mlx-lm: config, weights, tokenizer, model card.

An exported folder lists the files that export wrote, each with its digest. Every other file, and
any file that was changed since, belongs to the user and stays when the folder is exported again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, TypedDict

import mlx.core as mx
import msgspec

from mlx_attn.arrays import Arrays, load_arrays
from mlx_attn.attention.config import VARIANTS
from mlx_attn.errors import RunError
from mlx_attn.files import aside, atomic_write, remove, replace_directory, write_text
from mlx_attn.interop import names, standard
from mlx_attn.interop.parity import Parity
from mlx_attn.interop.tokenizer_json import NOTES, OWN, tokenizer_files
from mlx_attn.markdown import escaped, fenced
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.records import Count, check_record, read_record
from mlx_attn.sampling.generate import LoadedRun
from mlx_attn.text.subwords import GPT2Tokenizer

WEIGHTS = "model.safetensors"

_GPT2_SIZES = {
    "vocab_size": ("vocab_size", 50257),
    "n_positions": ("context_length", 1024),
    "n_embd": ("emb_dim", 768),
    "n_head": ("n_heads", 12),
    "n_layer": ("n_layers", 12),
    "n_inner": ("hidden_dim", 0),
}
"""GPT-2's keys, our keys, and the value of GPT-2 small if a key is missing."""

_GPT2_FACTS: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
"""The values of GPT-2 that this program supports; the first is written, and is the default."""


class _GPT2(TypedDict, total=False):
    """The keys of a folder's config.json that are read."""

    vocab_size: Count
    n_positions: Count
    n_embd: Count
    n_head: Count
    n_layer: Count
    n_inner: Count | None
    tie_word_embeddings: bool


class _Index(msgspec.Struct):
    """The index of a model whose weights are split over several files."""

    weight_map: dict[str, str]


def gpt2_config(config: GPTConfig) -> dict[str, Any]:
    """Return the config.json of a model in the standard form."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_ctx": config.context_length,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": None,
        "eos_token_id": None,
        **{key: values[0] for key, values in _GPT2_FACTS.items()},
        **{theirs: getattr(config, ours) for theirs, (ours, _) in _GPT2_SIZES.items()},
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.drop_rate),
    }


def gpt2_settings(folder: Path) -> GPTConfig:
    """Return the configuration of a folder's config.json.

    Raises:
        RunError: It is another architecture, or has an option that this program does not support.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise RunError(f"{folder}: there is no config.json in it")
    record = check_record(read_record(path), _GPT2, str(path))
    for key, supported in _GPT2_FACTS.items():
        default = supported[0] if key != "model_type" else None
        if (value := record.get(key, default)) not in supported:
            words = " or ".join(map(repr, supported))
            raise RunError(f"{path}: {key}={value!r} is not computed here, only {words}")
    sizes: dict[str, Any] = {
        ours: record.get(theirs) or size for theirs, (ours, size) in _GPT2_SIZES.items()
    }
    return GPTConfig(**sizes, tied_head=record.get("tie_word_embeddings", True), qkv_bias=True)


def read_gpt2(folder: Path) -> GPT:
    """Return the model of a folder with GPT-2's configuration and weights as safetensors.

    Raises:
        RunError: It is another architecture, or its weights belong to another model.
    """
    config, index = gpt2_settings(folder), folder / f"{WEIGHTS}.index.json"
    files = sorted(folder.glob("*.safetensors"))
    if index.is_file():  # it lists the files over which the weights are split
        names_of_files = sorted({*read_record(index, _Index).weight_map.values()})
        for name in names_of_files:
            if Path(name).name != name or not (folder / name).is_file():
                raise RunError(f"{index}: there is no file '{name}' in this folder")
        files = [folder / name for name in names_of_files]
    arrays: Arrays = {}
    for path in files:
        part = load_arrays(path)[0]
        if twice := sorted(arrays.keys() & part.keys()):
            raise RunError(
                f"{path}: {twice[0]} is in another *.safetensors of this folder too: remove the "
                f"file that is not of this model, or add {index.name}"
            )
        arrays |= part
    if not arrays:
        raise RunError(
            f"{folder}: there is no *.safetensors in it; save it with safe_serialization=True"
        )
    with names.understood(folder):
        return standard.model_of(config, names.from_gpt2(arrays))


def write_folder(
    loaded: LoadedRun, out: Path, config: Mapping[str, Any], arrays: Mapping[str, mx.array]
) -> None:
    """Write configuration, weights, tokenizer and generation settings.

    The tokenizer is written a second time in the format of a run, which `import` reads.
    """
    context, tokenizer = loaded.model.config.context_length, loaded.tokenizer
    end = {"eos_token_id": tokenizer.end} if isinstance(tokenizer, GPT2Tokenizer) else {}
    start = loaded.start_tokens
    first = {"bos_token_id": start[0]} if len(start) == 1 else {}  # how unprompted text begins
    files = {
        "config.json": {**config, **end, "dtype": "float32"},
        "generation_config.json": {"max_length": context, **first, **end},
        **tokenizer_files(tokenizer, context),
    }
    for name, content in files.items():
        write_text(out / name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    plain = {name: mx.contiguous(array.astype(mx.float32)) for name, array in arrays.items()}
    with atomic_write(out / WEIGHTS) as temporary, temporary.open("wb") as file:
        mx.save_safetensors(file, plain, {"format": "pt"})
    tokenizer.save(out / OWN)


def write_card(
    loaded: LoadedRun, place: Path, name: str, route: str, parities: Sequence[Parity]
) -> None:
    """Write README.md: a summary of the model, how to run it, and its limits.

    The names and words of a run are untrusted: they are escaped, never read as markup.

    Args:
        loaded: The run.
        place: The temporary folder that is being written.
        name: The final name of the folder.
        route: The architecture that holds the model, and why.
        parities: The comparison with each program that read it back.
    """
    config, settings = loaded.model.config, loaded.run.settings
    variant = str(settings.get("variant", ""))
    row, best = VARIANTS.get(variant), loaded.run.best_validation()
    about = {
        "attention": variant + (f": {row.formula}" if row else ""),
        "positions": config.position,
        "layers, heads, width": f"{config.n_layers}, {config.n_heads}, {config.emb_dim}",
        "context": f"{config.context_length} tokens",
        "vocabulary": f"{config.vocab_size} tokens ({loaded.tokenizer.kind})",
        "trained on": str(settings.get("text", {}).get("data", "unknown")),
    }
    for key, (heading, unit) in _LOSSES.items():
        if best.get(key) is not None:
            about[heading] = f"{best[key]:.4f}{unit}"
    about["written as"] = route
    rows = "\n".join(f"| {key} | {escaped(value)} |" for key, value in about.items())
    lines = "\n".join(f"- {parity.line}" for parity in parities)
    code = (place / "model.py").exists()
    notes = "\n".join(f"- {note}" for note in _notes(loaded, code))
    is_lens = not (place / "generation_config.json").exists()
    command = _LENS if is_lens else _command(loaded, name, code)
    text = f"# {escaped(loaded.name)}\n\nA small language model, trained with mlx_attn.\n\n"
    text += f"| | |\n|---|---|\n{rows}\n\n## Running it\n\n{command}\n\n"
    write_text(place / "README.md", f"{text}## What to mind\n\n{notes}\n\n## Parity\n\n{lines}\n")


_LOSSES = {
    "val_loss": ("validation loss", " nats per token"),
    "bits_per_byte": ("bits per byte", ""),
    "above_floor": ("above the text's exact floor", ""),
}
_LENS = """With `pip install 'transformer-lens<4'`. Later versions have no HookedTransformer and
read what `--to gpt2` writes: `TransformerBridge.boot_transformers(folder)`.

```python
import json
from safetensors.torch import load_file
from transformer_lens import HookedTransformer

keys = json.load(open("config.json"))
keys = {key: keys[key] for key in keys if key not in ("dtype", "eos_token_id")}
model = HookedTransformer(keys)
model.load_state_dict(load_file("model.safetensors"), strict=False)
```"""


def _command(loaded: LoadedRun, name: str, code: bool) -> str:
    trust = " --trust-remote-code" if code else ""
    room = max(1, min(100, loaded.model.config.context_length - 8))
    start = loaded.tokenizer.decode(loaded.start_tokens)
    prompt = "\n" if loaded.tokenizer.kind in ("char", "symbols") else f"{start}One day"
    model = f"./{name}" if name.startswith("-") else name
    return fenced(
        f"mlx_lm.generate --model {_word(model)} --prompt {_word(prompt)} -m {room}{trust} "
        "--ignore-chat-template",
        "sh",
    )


def _word(text: str) -> str:
    """Quote a text as one shell word on one line."""
    if text.isprintable():
        return quote(text)
    return "$'" + text.encode("unicode_escape").decode().replace("'", "\\'") + "'"


def _notes(loaded: LoadedRun, code: bool) -> list[str]:
    context = loaded.model.config.context_length
    notes = [
        f"It was trained on {context} tokens at a time. Prompt and continuation together must not "
        "be longer: past that, mlx-lm's GPT-2 raises nothing and writes nonsense.",
        "There is no chat template and no end token: it continues a text.",
    ]
    if start := loaded.tokenizer.decode(loaded.start_tokens):
        notes.append(
            f"Every document that it was trained on began after {escaped(repr(start))}: begin a "
            "prompt with that, or the first words surprise it."
        )
    if code:
        notes += [
            "The folder holds code, model.py and modeling_mlx_attn.py: read it, then trust it with "
            "--trust-remote-code (mlx-lm) or trust_remote_code=True (transformers). LM Studio "
            "loads no such folder.",
            "It reads one sequence at a time, or several of one length without padding.",
        ]
    if loaded.tokenizer.kind in NOTES:
        notes.append(NOTES[loaded.tokenizer.kind])
    return notes


# Which files of a folder are the export's own.

_LIST = f"{OWN}/exported.json"


def is_exported_folder(folder: Path) -> bool:
    """Return True if an export wrote the folder, or if it is empty."""
    return (folder / _LIST).is_file() or not any(folder.iterdir())


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `out` when the block ends.

    The user's files move into it. If the block raises, `out` is unchanged.

    Raises:
        RunError: The new export needs the name of a user's file, or the folder cannot be written.
    """
    if out.is_symlink() or ".." in out.parts:
        out = out.resolve()
    new = aside(out)
    try:
        yield new
        written = _entries(new)
        digests = {name: _digest(path) for name, path in sorted(written.items())}
        write_text(new / _LIST, json.dumps(digests, indent=1) + "\n")
        own, there = _files_of_the_export(out), _entries(out) if out.is_dir() else {}
        for name in sorted(there.keys() - own):
            if name in {*written, _LIST} or name.startswith(f"{OWN}/"):
                raise RunError(
                    f"{out / name} was changed since the export, or is not of it: move it "
                    "elsewhere, or --out names another place"
                )
    except BaseException:
        if new.exists():
            remove(new)
        raise
    replace_directory(out, new, keep=lambda name: name not in own)


def _entries(folder: Path) -> dict[str, Path]:
    """Return the paths in an exported folder and in its `OWN` folder, by name."""
    inner = folder / OWN
    paths = [path for path in folder.iterdir() if path != inner or not path.is_dir()]
    paths += inner.iterdir() if inner.is_dir() else ()
    return {path.relative_to(folder).as_posix(): path for path in paths}


def _files_of_the_export(folder: Path) -> set[str]:
    """Return the names of files that export wrote and nobody changed since."""
    if not (folder / _LIST).is_file():
        return set()
    listed, entries = read_record(folder / _LIST, dict[str, str]), _entries(folder)
    own = {name for name, path in entries.items() if _digest(path) == listed.get(name, "")}
    return own | {OWN, _LIST, f"{OWN}/.DS_Store"}  # the Finder writes the last


def _digest(path: Path) -> str | None:
    """Return the digest of an ordinary file; None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
