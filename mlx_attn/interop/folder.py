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
from typing import Any

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
from mlx_attn.records import Count, read_record
from mlx_attn.sampling.generate import LoadedRun
from mlx_attn.text.subwords import GPT2Tokenizer

WEIGHTS = "model.safetensors"


class _GPT2(msgspec.Struct):
    """The keys of config.json that are read, with the values of GPT-2 small."""

    vocab_size: Count = 50257
    context_length: Count = msgspec.field(default=1024, name="n_positions")
    emb_dim: Count = msgspec.field(default=768, name="n_embd")
    n_heads: Count = msgspec.field(default=12, name="n_head")
    n_layers: Count = msgspec.field(default=12, name="n_layer")
    hidden_dim: Count | None = msgspec.field(default=None, name="n_inner")
    tied_head: bool = msgspec.field(default=True, name="tie_word_embeddings")
    model_type: str = ""
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False


_SIZES = _GPT2.__struct_fields__[:7]
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


class _Index(msgspec.Struct):
    """The index of a model whose weights are split over several files."""

    weight_map: dict[str, str]


def gpt2_config(config: GPTConfig) -> dict[str, Any]:
    """Return the config.json of a model in the standard form."""
    sizes = {key: getattr(config, key) for key in _SIZES}
    return {
        "architectures": ["GPT2LMHeadModel"],
        **msgspec.to_builtins(_GPT2(**sizes, model_type="gpt2")),
        "n_ctx": config.context_length,
        "bos_token_id": None,
        "eos_token_id": None,
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
    keys = read_record(path, _GPT2)
    for key, supported in _SUPPORTED.items():
        if (value := getattr(keys, key)) not in supported:
            words = " or ".join(map(repr, supported))
            raise RunError(f"{path}: {key}={value!r} is not computed here, only {words}")
    sizes = {key: getattr(keys, key) for key in _SIZES}
    return GPTConfig(**{**sizes, "hidden_dim": keys.hidden_dim or 0, "qkv_bias": True})


def read_gpt2(folder: Path) -> GPT:
    """Return the model of a folder with GPT-2's configuration and weights as safetensors.

    Raises:
        RunError: It is another architecture, or its weights belong to another model.
    """
    config, index = gpt2_settings(folder), folder / f"{WEIGHTS}.index.json"
    files = {WEIGHTS}
    if index.is_file():  # it lists the files over which the weights are split
        files = {*read_record(index, _Index).weight_map.values()}
    arrays: Arrays = {}
    for name in sorted(files):
        if Path(name).name != name or not (folder / name).is_file():
            raise RunError(
                f"{folder}: there is no file '{name}' in this folder; save the model with "
                "safe_serialization=True"
            )
        arrays |= load_arrays(folder / name)[0]
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
    """Write README.md in `place`, a folder that will be called `name`.

    The names and words of a run are untrusted: they are escaped, never read as markup.
    """
    config, settings = loaded.model.config, loaded.run.settings
    variant, best = str(settings.get("variant", "")), loaded.run.best_validation()
    formula = f": {VARIANTS[variant].formula}" if variant in VARIANTS else ""
    rows = [
        ("attention", variant + formula),
        ("positions", config.position),
        ("layers, heads, width", f"{config.n_layers}, {config.n_heads}, {config.emb_dim}"),
        ("context", f"{config.context_length} tokens"),
        ("vocabulary", f"{config.vocab_size} tokens ({loaded.tokenizer.kind})"),
        ("trained on", str(settings.get("text", {}).get("data", "unknown"))),
        *((words, f"{best[key]:.4f}") for key, words in _LOSSES.items() if best.get(key)),
        ("written as", route),
    ]
    code = (place / "model.py").exists()
    is_lens = not (place / "generation_config.json").exists()
    paragraphs = [
        f"# {escaped(loaded.name)}",
        "A small language model, trained with mlx_attn.",
        "\n".join(
            ["| | |", "|---|---|", *(f"| {key} | {escaped(words)} |" for key, words in rows)]
        ),
        "## Running it",
        _LENS if is_lens else _command(loaded, name, code),
        "## What to mind",
        "\n".join(f"- {note}" for note in _notes(loaded, code)),
        "## Parity",
        "\n".join(f"- {parity.line}" for parity in parities),
    ]
    write_text(place / "README.md", "\n\n".join(paragraphs) + "\n")


_LOSSES = {
    "val_loss": "validation loss, nats per token",
    "bits_per_byte": "bits per byte",
    "above_floor": "above the text's exact floor, nats per token",
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
        *NOTES.get(loaded.tokenizer.kind, ()),
    ]
    if start := loaded.tokenizer.decode(loaded.start_tokens):
        notes.append(
            f"Every document that it was trained on began after {escaped(repr(start))}: begin a "
            "prompt with that, or the first words surprise it."
        )
    if code:
        notes.append(
            "The folder holds code, model.py and modeling_mlx_attn.py: read it, then trust it with "
            "--trust-remote-code (mlx-lm) or trust_remote_code=True (transformers). LM Studio "
            "loads no such folder. It reads one sequence at a time, or several of one length."
        )
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
        digests = {name: _digest(new / name) for name in sorted(_names(new) - {OWN})}
        write_text(new / _LIST, json.dumps(digests, indent=1) + "\n")
        listed = read_record(out / _LIST, dict[str, str]) if (out / _LIST).is_file() else {}
        own = {name for name, digest in listed.items() if _digest(out / name) == digest}
        own |= {OWN, _LIST, f"{OWN}/.DS_Store"}  # the Finder writes the last
        for name in sorted(_names(out) - own):
            if name in digests or name.startswith(f"{OWN}/"):
                raise RunError(
                    f"{out / name} was changed since the export, or is not of it: move it "
                    "elsewhere, or --out names another place"
                )
    except BaseException:
        if new.exists():
            remove(new)
        raise
    replace_directory(out, new, keep=lambda name: name not in own)


def _names(folder: Path) -> set[str]:
    """Return what is in an exported folder and in its `OWN` folder."""
    paths = [*folder.glob("*"), *folder.glob(f"{OWN}/*")]
    return {path.relative_to(folder).as_posix() for path in paths}


def _digest(path: Path) -> str | None:
    """Return the digest of an ordinary file; None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
