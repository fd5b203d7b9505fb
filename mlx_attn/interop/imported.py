"""Import a checkpoint of another program: read it, find its tokenizer, and write a run.

The caller must give missing facts: the number of heads of a state dict, and the tokenizer of a
vocabulary that is not GPT-2's.
"""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

from mlx_attn.arrays import count_parameters
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import user_path
from mlx_attn.interop.checkpoints import SUFFIXES, Checkpoint, read_checkpoint
from mlx_attn.interop.tokenizer_json import OWN
from mlx_attn.run_directory import Run, check_free, new_run
from mlx_attn.runs import RUNS
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.downloads import GPT2_MERGES, data_directory, fetch
from mlx_attn.text.foreign import FILES, read_foreign
from mlx_attn.text.tokenizers import KINDS, Tokenizer, load_tokenizer
from mlx_attn.training.config import resolve

_GPT2_VOCABULARY = 50257

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


def find_checkpoint(name: str, n_heads: int = 0) -> Checkpoint:
    """Return the checkpoint in a file, in a folder or under the name of a published model.

    Args:
        name: A path, or a name of the hub such as "gpt2".
        n_heads: Number of heads, if no file has it.

    Raises:
        RunError: It cannot be read, or is not a supported model.
        ConfigError: No file has the number of heads, so it must be given.
    """
    path = user_path(name)
    return read_checkpoint(path if path.exists() else _downloaded(name), n_heads)


def _downloaded(name: str) -> Path:
    """Return the folder of a published model, which huggingface_hub downloads once."""
    is_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)
    if not is_name or Path(name).suffix in SUFFIXES:
        raise RunError(f"{name}: there is no such file or folder")
    if not importlib.util.find_spec("huggingface_hub"):
        raise RunError(
            f"{name}: there is no such file or folder; to download a published model of that name, "
            "pip install 'mlx-attn[hub]'"
        )
    import huggingface_hub  # pyright: ignore[reportMissingImports]

    needed = ["*.json", "*.safetensors", "merges.txt"]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=needed))
    except (OSError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise RunError(f"{name}: no such file or folder, and not downloaded: {line}") from error


_TOKENIZERS = (
    "give --tokenizer with byte, gpt2, a run or folder with the model's tokenizer, or its "
    "tokenizer.json or file of merges"
)


def find_tokenizer(source: Checkpoint, named: str | None = None) -> Tokenizer:
    """Return the tokenizer of an imported model.

    Args:
        source: The checkpoint.
        named: "byte", "gpt2" (the published one), a run or folder with a tokenizer, a
            tokenizer.json or a file of merges; None: the tokenizer in the checkpoint's folder, or
            the published one if the vocabulary is as large as GPT-2's.

    Raises:
        ConfigError: No tokenizer was found, or its vocabulary differs from the model's.
    """
    size = source.model.config.vocab_size
    if named:
        tokenizer = _named_tokenizer(named)
    else:
        tokenizer = _tokenizer_in(source.path if source.path.is_dir() else source.path.parent)
        if size == _GPT2_VOCABULARY and (tokenizer is None or tokenizer.vocab_size != size):
            tokenizer = _named_tokenizer("gpt2")
    if tokenizer is None:
        raise ConfigError(
            f"{source.path}: no tokenizer lies beside it, and a vocabulary of {size} is not "
            f"GPT-2's: {_TOKENIZERS}"
        )
    if tokenizer.vocab_size != size:
        raise ConfigError(
            f"the {tokenizer.kind} tokenizer has {tokenizer.vocab_size} tokens, and the model "
            f"{size}: give --tokenizer with the one that it was trained with"
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
    if named == ByteTokenizer.kind:
        return ByteTokenizer()
    if named == "gpt2":
        return read_foreign(fetch(replace(GPT2_MERGES, instead=_TOKENIZERS), data_directory()))
    if named in KINDS:
        raise ConfigError(
            f"--tokenizer {named}: its vocabulary would be made from a text, and the model has one "
            f"already: {_TOKENIZERS}"
        )
    raise RunError(f"--tokenizer {named}: there is no such run, folder or file: {_TOKENIZERS}")


def import_run(
    source: Checkpoint, out: Path, data: str, named: str | None = None, overwrite: bool = False
) -> Run:
    """Write a checkpoint as a run, to be trained on `data` with the checkpoint's tokenizer.

    Args:
        source: The checkpoint.
        out: The run's directory.
        data: The text to train on later.
        named: The tokenizer; see `find_tokenizer`.
        overwrite: If True, replace an existing run.

    Raises:
        ConfigError: No tokenizer was found, or its vocabulary differs from the model's.
        RunError: The run cannot be written.
    """
    check_free(out, overwrite)
    tokenizer, config = find_tokenizer(source, named), source.model.config
    sizes = {key: value for key, value in config.as_dict().items() if key != "vocab_size"}
    text = {"data": data, "tokenizer": str(out.resolve()), "vocab_size": tokenizer.vocab_size}
    settings = resolve({**sizes, **_FINE_TUNING, **text})
    facts = {"params": count_parameters(source.model)}
    facts |= {"from": str(source.path), "as": source.what}
    record = settings.record(config, imported=facts)
    with new_run(out, record, overwrite, tokenizer) as run:
        run.save_model(source.model)
    return run
