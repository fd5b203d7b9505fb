"""Import a checkpoint of another program: read it, find its tokenizer, and write a run.

The caller must give missing facts: the number of heads of a state dict, and the tokenizer of a
vocabulary that is not GPT-2's.
"""

import re
from dataclasses import replace
from pathlib import Path

from mlx_attn.arrays import count_parameters, named_arrays
from mlx_attn.errors import ConfigError, RunError, optional
from mlx_attn.files import user_path
from mlx_attn.interop.checkpoints import SUFFIXES, Checkpoint, read_checkpoint
from mlx_attn.interop.names import BOOK
from mlx_attn.interop.tokenizer_json import OWN
from mlx_attn.model.gpt import gpt_from
from mlx_attn.run_directory import Run, check_free, new_run
from mlx_attn.runs import RUNS
from mlx_attn.text.foreign import FILES
from mlx_attn.text.tokenizers import KINDS, Tokenizer, load_tokenizer, train_tokenizer
from mlx_attn.training.config import resolve

_GPT2_VOCABULARY = 50257
_GPT2_ROWS = range(_GPT2_VOCABULARY, 50305)
"""With a token for padding, or up to the next multiple of 64, as nanoGPT has."""

_FINE_TUNING = {
    "optimizer": "adamw",
    "lr": 5e-5,
    "schedule": "cosine",
    "warmup": 20,
    "weight_decay": 0.1,
    "beta2": 0.999,
    "steps": 200,
    "batch_size": 4,
    "eval_every": 100,
}
"""The default settings for training an imported run further."""


def find_checkpoint(name: str, n_heads: int = 0, **windows: int) -> Checkpoint:
    """Read the checkpoint at a path, or of a published model such as "gpt2" (`read_checkpoint`).

    The `windows` are settings of the book's model that its state dict does not tell.

    Raises:
        ConfigError: It is another program's, whose windows are known: none.
    """
    path = user_path(name)
    source = read_checkpoint(path if path.exists() else _downloaded(name), n_heads)
    if not any(windows.values()):
        return source
    if source.what != BOOK or source.path.is_dir():
        raise ConfigError(f"--window: {source.path} has none; only models of chapter 4 may have")
    return _changed(source, **windows)


def _changed(source: Checkpoint, **settings: int) -> Checkpoint:
    """Return the model with other settings, of the first `vocab_size` rows."""
    config = replace(source.model.config, **settings)
    arrays = named_arrays(source.model)
    for name in arrays.keys() & {"tok_emb.weight", "out_head.weight"}:
        arrays[name] = arrays[name][: config.vocab_size]
    return replace(source, model=gpt_from(config, arrays, source.path))


def _downloaded(name: str) -> Path:
    """Return the folder of a published model, which huggingface_hub downloads once."""
    is_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)
    if not is_name or Path(name).suffix in SUFFIXES:
        raise RunError(f"{name}: there is no such file or folder")
    hub = optional(
        "huggingface_hub",
        f"{name}: there is no such file or folder; to download a published model of that name, "
        "pip install 'mlx-attn[hub]'",
    )
    needed = ["*.json", "*.safetensors", "merges.txt"]
    try:
        return Path(hub.snapshot_download(name, allow_patterns=needed))
    except (OSError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise RunError(f"{name}: no such file or folder, and not downloaded: {line}") from error


_TOKENIZERS = (
    "give --tokenizer with byte, gpt2, its tokenizer.json or file of merges, or a run or folder "
    "with it; for nanoGPT's characters, 'train --tokenizer char --steps 1' on its text makes one"
)


def find_tokenizer(source: Checkpoint, named: str | None = None, cut: bool = False) -> Tokenizer:
    """Return the tokenizer of an imported model.

    Args:
        source: The checkpoint.
        named: "byte", "gpt2" (the published one), a run or folder with a tokenizer, a
            tokenizer.json or a file of merges; None: the tokenizer in the checkpoint's folder, or
            the published one if the vocabulary is as large as GPT-2's, or that with padding.
        cut: Whether the model may have more rows than the tokenizer has tokens.

    Raises:
        ConfigError: No tokenizer was found, or its vocabulary differs from the model's.
    """
    size = source.model.config.vocab_size
    folder = source.path if source.path.is_dir() else source.path.parent
    tokenizer = _named_tokenizer(named) if named is not None else _tokenizer_in(folder)
    fits = tokenizer is not None and tokenizer.vocab_size == size
    if named is None and not fits and size in _GPT2_ROWS:
        tokenizer = _named_tokenizer("gpt2")
    if tokenizer is None:
        raise ConfigError(
            f"{source.path}: no tokenizer lies beside it, and a vocabulary of {size} is not "
            f"GPT-2's: {_TOKENIZERS}"
        )
    tokens = tokenizer.vocab_size
    cut |= tokens == _GPT2_VOCABULARY and size in _GPT2_ROWS
    if tokens != size and not (cut and tokens < size):
        or_cut = f", or --cut-vocabulary if its last {size - tokens} rows are padding"
        raise ConfigError(
            f"the {tokenizer.kind} tokenizer has {tokens} tokens, and the model {size}: give "
            f"--tokenizer with the one that it was trained with{or_cut if tokens < size else ''}"
        )
    return tokenizer


def _tokenizer_in(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a run, an export or a Hugging Face folder; None without files."""
    for place in (folder / OWN, folder):
        if any((place / name).is_file() for name in FILES):
            return load_tokenizer(place)
    return None


def _named_tokenizer(named: str) -> Tokenizer:
    for path in (user_path(named), RUNS / named):
        if path.exists():
            return _tokenizer_in(path) or load_tokenizer(path)
    if named in ("byte", "gpt2"):
        return train_tokenizer(named, "")
    if named in KINDS:
        raise ConfigError(
            f"--tokenizer {named}: its vocabulary would be made from a text, and the model has one "
            f"already: {_TOKENIZERS}"
        )
    raise RunError(f"--tokenizer {named}: there is no such run, folder or file: {_TOKENIZERS}")


def import_run(
    source: Checkpoint,
    out: Path,
    data: str,
    named: str | None = None,
    overwrite: bool = False,
    cut: bool = False,
) -> Run:
    """Write a checkpoint as a run, to be trained on `data` later with the checkpoint's tokenizer.

    The tokenizer is that of `find_tokenizer`, which also says what is refused. Rows past its tokens
    are left out: no other logit changes.

    Raises:
        RunError: The run cannot be written.
    """
    check_free(out, overwrite)
    tokenizer = find_tokenizer(source, named, cut)
    if tokenizer.vocab_size < source.model.config.vocab_size:
        source = _changed(source, vocab_size=tokenizer.vocab_size)
    config = source.model.config
    sizes = {key: value for key, value in config.as_dict().items() if key != "vocab_size"}
    text = {"data": data, "tokenizer": str(out.resolve()), "vocab_size": tokenizer.vocab_size}
    settings = resolve({**sizes, **_FINE_TUNING, **text})
    facts = {"params": count_parameters(source.model)}
    facts |= {"from": str(source.path), "as": source.what}
    record = settings.record(config, imported=facts)
    with new_run(out, record, overwrite, tokenizer) as run:
        run.save_model(source.model)
    return run
