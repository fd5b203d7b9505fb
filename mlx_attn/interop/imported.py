"""Import a checkpoint of another program: read it, find its tokenizer, and write a run.

No imported code is executed. The caller must give missing facts: the number of heads of a
state dict, and the tokenizer of a vocabulary that is not GPT-2's.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlx.core as mx

from mlx_attn.arrays import load_arrays
from mlx_attn.attention.conversions import find_conversion
from mlx_attn.convert.measure import conversion_memory
from mlx_attn.convert.model import converted_config
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import user_path
from mlx_attn.interop import names, parity, standard
from mlx_attn.interop.folder import gpt2_settings, read_gpt2
from mlx_attn.interop.gguf import read_gguf
from mlx_attn.interop.parity import UNREAD, Parity
from mlx_attn.interop.tokenizer_json import read_tokenizer
from mlx_attn.interop.torch_archive import read_checkpoint
from mlx_attn.machine.facts import PROCESS_MEMORY
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT, model_cost
from mlx_attn.run_directory import Run, check_free, new_run
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.downloads import GPT2_MERGES, data_directory, fetch
from mlx_attn.text.subwords import GPT2Tokenizer
from mlx_attn.text.tokenizers import KINDS, Tokenizer, load_tokenizer
from mlx_attn.training.config import resolve

_GPT2_VOCABULARY = 50257
_HEAD_WIDTH = 64
"""Width of a head in every published GPT-2 and in the book."""

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


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint to import."""

    path: Path  # the file or folder
    what: str  # a few words about its format
    config: GPTConfig
    load: Callable[[], GPT]  # reads the model
    peer: str = ""  # another program that reads the same format
    facts: Mapping[str, float] = field(default_factory=dict)  # further arguments for that program


def find_source(name: str, n_heads: int = 0, lora_alpha: float = names.LORA_ALPHA) -> Source:
    """Return the checkpoint in a file, in a folder or under the name of a published model.

    Args:
        name: A path, or a name of the hub such as "gpt2".
        n_heads: Number of heads, which a state dict does not record; 0: emb_dim / 64.
        lora_alpha: The factor of LoRA's product, which a state dict does not record either.

    Raises:
        RunError: It cannot be read, or is not a supported model.
        ConfigError: The file lacks the number of heads, which must be given.
    """
    path = user_path(name)
    if not path.exists():
        path = _downloaded(name)
    if path.is_dir():
        return Source(path, "GPT-2", gpt2_settings(path), lambda: read_gpt2(path), "transformers")
    if not path.is_file():
        raise RunError(f"{path}: a pipe or a device, not a file or a folder")
    if path.suffix == ".gguf":
        model = read_gguf(path)
        peer = "transformers" if model.config.norm == "layernorm" else "llama.cpp"
        return Source(path, "GGUF", model.config, lambda: model, peer)
    arrays = load_arrays(path)[0] if path.suffix == ".safetensors" else read_checkpoint(path)
    with names.understood(path):
        if any(name.endswith("wte.weight") for name in arrays):
            ours, what, peer = names.from_gpt2(arrays), "GPT-2's state dict", ""
        else:
            ours, what, peer = names.from_book(arrays, lora_alpha), "the book's GPTModel", "torch"
        config = _config_of(path, ours, n_heads)
    facts = {"n_heads": config.n_heads, "lora_alpha": lora_alpha}
    return Source(path, what, config, lambda: standard.model_of(config, ours), peer, facts)


def _config_of(path: Path, arrays: Mapping[str, mx.array], n_heads: int) -> GPTConfig:
    """Derive the configuration from the shapes of a state dict and the number of heads."""
    embedding, head = arrays["tok_emb.weight"], arrays.get("out_head.weight")
    vocab_size, emb_dim = embedding.shape
    if not n_heads and emb_dim % _HEAD_WIDTH:
        raise ConfigError(
            f"{path}: a state dict does not say how many heads its {emb_dim} numbers are cut "
            "into: give --n-heads"
        )
    return GPTConfig(
        vocab_size=vocab_size,
        context_length=arrays["pos_emb.weight"].shape[0],
        emb_dim=emb_dim,
        hidden_dim=arrays["trf_blocks.0.ff.layers.0.weight"].shape[0],
        n_heads=n_heads or emb_dim // _HEAD_WIDTH,
        n_layers=len({name.split(".")[1] for name in arrays if name.startswith("trf_blocks.")}),
        qkv_bias="trf_blocks.0.att.W_query.bias" in arrays,
        tied_head=head is None or bool(mx.array_equal(head, embedding).item()),  # saved twice
    )


def _downloaded(name: str) -> Path:
    """Return the folder of a published model, which huggingface_hub downloads once."""
    is_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)
    if not is_name or Path(name).suffix in (".pth", ".pt", ".bin", ".safetensors", ".gguf"):
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
    "give --tokenizer with byte, gpt2, a run or folder with the model's tokenizer, or a file of "
    "its merges"
)


def find_tokenizer(source: Source, named: str | None = None) -> Tokenizer:
    """Return the tokenizer of an imported model.

    Args:
        source: The checkpoint.
        named: "byte", "gpt2" (the published one), a run or folder with a tokenizer, or a file of
            merges; None: the tokenizer in the checkpoint's folder, or the published one if the
            vocabulary is as large as GPT-2's.

    Raises:
        ConfigError: No tokenizer was found, or its vocabulary differs from the model's.
    """
    size = source.config.vocab_size
    if named:
        tokenizer = _named_tokenizer(named)
    else:
        tokenizer = read_tokenizer(source.path if source.path.is_dir() else source.path.parent)
        if size == _GPT2_VOCABULARY and (tokenizer is None or tokenizer.vocab_size != size):
            tokenizer = _named_tokenizer(GPT2Tokenizer.kind)
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


def _named_tokenizer(named: str) -> Tokenizer:
    for path in (user_path(named), Path("runs", named)):
        if path.is_dir():
            return read_tokenizer(path) or load_tokenizer(path)
    if user_path(named).is_file():
        return GPT2Tokenizer.from_file(user_path(named))
    if named == ByteTokenizer.kind:
        return ByteTokenizer()
    if named == GPT2Tokenizer.kind:
        merges = replace(GPT2_MERGES, instead=_TOKENIZERS)
        return GPT2Tokenizer.from_file(fetch(merges, data_directory()))
    if named in KINDS:
        raise ConfigError(
            f"--tokenizer {named}: its vocabulary would be made from a text, and the model has one "
            f"already: {_TOKENIZERS}"
        )
    raise RunError(f"--tokenizer {named}: there is no such run, folder or file: {_TOKENIZERS}")


def import_run(
    source: Source, out: Path, data: str, named: str | None = None, overwrite: bool = False
) -> tuple[Run, Parity | str]:
    """Write a checkpoint as a run, to be trained on `data` with the checkpoint's tokenizer.

    Args:
        source: The checkpoint.
        out: The run's directory.
        data: The text to train on later.
        named: The tokenizer; see `find_tokenizer`.
        overwrite: If True, replace an existing run.

    Returns:
        The run; and the comparison with the program that it came from, or why there is none.

    Raises:
        ConfigError: No tokenizer was found, or its vocabulary differs from the model's.
        RunError: The weights cannot be read, the run cannot be written, or the program that it came
            from computes other logits, or gives a text other ids.
    """
    check_free(out, overwrite)
    tokenizer, model = find_tokenizer(source, named), source.load()
    agreement = parity_of(source, model, None if named else tokenizer)
    if isinstance(agreement, Parity):
        agreement.check(str(out))
        if agreement.text_ids not in ("", "equal") and not agreement.text_ids.startswith(UNREAD):
            raise RunError(
                f"{out} is not written, because {agreement.by} gives a text other ids: "
                f"{agreement.text_ids}; --tokenizer names another tokenizer"
            )
    sizes = {key: value for key, value in model.config.as_dict().items() if key != "vocab_size"}
    text = {"data": data, "tokenizer": str(out.resolve()), "vocab_size": tokenizer.vocab_size}
    settings = resolve({**sizes, **_FINE_TUNING, **text})
    record = settings.record(model.config, imported={"from": str(source.path), "as": source.what})
    with new_run(out, record, overwrite, tokenizer) as run:
        run.save_model(model)
    return run, agreement


def parity_of(source: Source, model: GPT, tokenizer: Tokenizer | None = None) -> Parity | str:
    """Compare the model and tokenizer read from a checkpoint with the program that it came from.

    Returns:
        The comparison; or a line with the reason why nothing was compared.
    """
    if not source.peer:
        return f"no other program here reads {source.what}"
    if not parity.interpreter(source.peer):
        where = "in this Python nor in that of MLX_ATTN_PEERS_PYTHON"
        return f"{source.peer}, which reads it too, is neither installed {where}"
    reference = parity.Reference(model, tokenizer)
    try:
        return reference.compare_peer(source.peer, source.path, **source.facts)
    except RunError as error:
        return str(error)


def memory_peaks(config: GPTConfig) -> dict[str, int]:
    """Estimate the peak bytes of importing and merging, without allocating them.

    `import_peak` counts the arrays of file and run, `merged_parameters` the weights after `convert
    --to merged`, and `convert_peak` the comparison of both models.
    """
    merged = converted_config(find_conversion("merged"), config)
    return {
        "import_peak": PROCESS_MEMORY + 3 * 4 * model_cost(config).parameters,
        "merged_parameters": model_cost(merged).parameters,
        "convert_peak": conversion_memory(config, merged),
    }
