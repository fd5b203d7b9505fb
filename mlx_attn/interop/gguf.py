"""GGUF, llama.cpp's single-file format: GPT-2, and arcee for RoPE, RMSNorm and squared ReLU.

MLX writes and reads the container. RoPE in llama.cpp rotates neighbouring coordinates of a head,
and this program pairs its two halves, so arcee's queries and keys are stored with them interleaved.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_attn.arrays import Arrays, named_arrays
from mlx_attn.errors import RunError
from mlx_attn.files import atomic_write
from mlx_attn.interop import names, standard
from mlx_attn.interop.tokenizer_json import gguf_tokenizer
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.text.tokenizers import Tokenizer

_GPT2_SIZES = {
    "block_count": "n_layers",
    "context_length": "context_length",
    "embedding_length": "emb_dim",
    "feed_forward_length": "hidden_dim",
    "attention.head_count": "n_heads",
    "vocab_size": "vocab_size",
}
_SIZES = {
    "gpt2": _GPT2_SIZES,
    "arcee": _GPT2_SIZES
    | {
        "attention.head_count_kv": "n_kv_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "value_dim",
        "rope.dimension_count": "head_dim",
    },
}
"""GGUF's keys of each architecture, without its prefix, and our keys."""

_CONSTANTS = {
    "gpt2": {"attention.layer_norm_epsilon": 1e-5},
    "arcee": {"rope.freq_base": 10000.0, "attention.layer_norm_rms_epsilon": 1e-6},
}
_BLOCKS: dict[str, dict[str, Any]] = {
    "gpt2": {"qkv_bias": True},
    "arcee": {"position": "rope", "norm": "rmsnorm", "activation": "relu2", "bias": False},
}
_ARCEE = {key: (value,) for key, value in _BLOCKS["arcee"].items()} | {"qkv_bias": (False,)}
"""The values that the architecture requires."""


def gguf_form(model: GPT) -> tuple[str, GPT]:
    """Return the architecture that can hold a model, and the model converted to it.

    Raises:
        ConfigError: No architecture can hold it; the message lists the reasons.
    """
    config = model.config
    if config.position != "rope":
        return "gpt2", standard.gpt2_form(model, "gguf")
    one_key = config.attention().choices("score")[0].shape(config.attention())[0] == 1
    groups = 1 if one_key else config.n_kv_heads
    changes = {"n_kv_heads": groups, "qkv_bias": False, "bias": False}
    name, width = "arcee (RoPE, RMSNorm, squared ReLU)", max(standard.widths(config))
    return "arcee", standard.standard_form(model, "gguf", name, _ARCEE, width, **changes)


def write_gguf(path: Path, architecture: str, model: GPT, tokenizer: Tokenizer, name: str) -> None:
    """Write a model converted by `gguf_form`, in float32."""
    config = model.config
    arrays = names.to_gguf(named_arrays(model), architecture)
    if architecture == "arcee":
        arrays = _with_heads_as(arrays, 2, config.head_dim // 2)
    sizes = {theirs: getattr(config, ours) for theirs, ours in _SIZES[architecture].items()}
    facts = {
        "general.architecture": architecture,
        "general.name": name,
        "general.file_type": 0,
        **{f"{architecture}.{k}": v for k, v in {**sizes, **_CONSTANTS[architecture]}.items()},
        **gguf_tokenizer(tokenizer),
    }
    with atomic_write(path) as temporary:
        file = temporary.with_suffix(".gguf")  # MLX adds the suffix if it is missing
        plain = {k: mx.contiguous(array.astype(mx.float32)) for k, array in arrays.items()}
        mx.save_gguf(str(file), plain, {key: _value(value) for key, value in facts.items()})
        file.replace(temporary)


def _value(value: Any) -> Any:
    """Convert a value for MLX: texts stay, numbers become arrays of GGUF's usual types."""
    first = value[0] if isinstance(value, list) else value
    if isinstance(first, str):
        return value
    kinds = {bool: mx.bool_, float: mx.float32, int: mx.uint32}
    of_tokens = isinstance(value, list) and isinstance(first, int)
    return mx.array(value, mx.int32 if of_tokens else kinds[type(first)])


def _with_heads_as(arrays: Arrays, rows: int, columns: int) -> Arrays:
    """Transpose the coordinates of each head of queries and keys, read as rows x columns."""
    turned = dict(arrays)
    for name, array in arrays.items():
        if "attn_q." in name or "attn_k." in name:
            heads = array.reshape(-1, rows, columns, array.shape[1])
            turned[name] = heads.swapaxes(1, 2).reshape(array.shape)
    return turned


_GENERAL = {"general.architecture", "general.name", "general.file_type"}
"""The general keys of `write_gguf`; other programs write more, or omit the vocabulary size."""


def is_exported_gguf(path: Path) -> bool:
    """Return True if `write_gguf` wrote the file."""
    try:
        _, facts = _load(path)
    except RunError:
        return False
    has_size = any(f"{architecture}.vocab_size" in facts for architecture in _SIZES)
    return has_size and {key for key in facts if key.startswith("general.")} == _GENERAL


def read_gguf(path: Path) -> GPT:
    """Return the model of a GGUF file that holds GPT-2 or arcee, not quantized.

    Raises:
        RunError: It cannot be read, or is another architecture.
    """
    arrays, facts = _load(path)
    architecture = facts.get("general.architecture")
    if architecture not in _SIZES:
        raise RunError(f"{path}: holds {architecture}, and only gpt2 and arcee are read")
    rows = _SIZES[architecture].items()
    try:
        sizes = {ours: int(facts[f"{architecture}.{theirs}"].item()) for theirs, ours in rows}
    except (KeyError, AttributeError, ValueError) as error:
        raise RunError(f"{path}: a size is missing or no number ({error})") from error
    config = GPTConfig(**sizes, **_BLOCKS[architecture], tied_head="output.weight" not in arrays)
    with names.understood(path):
        if architecture == "arcee":
            arrays = _with_heads_as(arrays, config.head_dim // 2, 2)
        return standard.model_of(config, names.from_gguf(arrays))


def _load(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Return the tensors and facts of a file."""
    try:
        loaded: Any = mx.load(str(path), format="gguf", return_metadata=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise RunError(f"{path}: cannot be read as GGUF ({error})") from error
    return loaded
