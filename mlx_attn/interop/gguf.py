"""GGUF, the one-file form of llama.cpp: GPT-2, and arcee for RoPE, RMSNorm and squared ReLU.

MLX writes and reads the container. llama.cpp turns neighbouring coordinates of a head where this
program turns its two halves, so arcee's queries and keys are stored with the halves in turn.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_attn.arrays import named_arrays
from mlx_attn.errors import RunError
from mlx_attn.files import atomic_write
from mlx_attn.interop import names, standard
from mlx_attn.interop.tokenizer_json import gguf_tokenizer
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.text.tokenizers import Tokenizer

_SIZES = {
    "block_count": "n_layers",
    "context_length": "context_length",
    "embedding_length": "emb_dim",
    "feed_forward_length": "hidden_dim",
    "attention.head_count": "n_heads",
    "vocab_size": "vocab_size",
}
_ROPE_SIZES = {
    "attention.head_count_kv": "n_kv_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "value_dim",
    "rope.dimension_count": "head_dim",
}
"""GGUF's keys, after the architecture's name, and ours."""

_CONSTANTS = {
    "gpt2": {"attention.layer_norm_epsilon": 1e-5},
    "arcee": {"rope.freq_base": 10000.0, "attention.layer_norm_rms_epsilon": 1e-6},
}
_BLOCKS: dict[str, dict[str, Any]] = {
    "gpt2": {"qkv_bias": True},
    "arcee": {"position": "rope", "norm": "rmsnorm", "activation": "relu2", "bias": False},
}


def gguf_form(model: GPT) -> tuple[str, GPT]:
    """The architecture that holds a model, and the model in its form.

    Raises:
        ConfigError: None does; says why.
    """
    config, instead = model.config, "'--to mlx-lm' ships code that holds any model"
    if config.position != "rope":
        return "gpt2", standard.gpt2_form(model, "gguf", instead)
    if reasons := standard.obstacles(config, {**standard.ARCEE, "qkv_bias": (False,)}):
        raise standard.refused("gguf", "arcee (RoPE, RMSNorm, squared ReLU)", reasons, instead)
    one_key = config.attention().choices("score")[0].shape(config.attention())[0] == 1
    groups = 1 if one_key else config.n_kv_heads
    wanted = standard.standard_config(
        config, standard.head_width(config), n_kv_heads=groups, qkv_bias=False, bias=False
    )
    return "arcee", standard.standard_form(model, wanted)


def write_gguf(path: Path, architecture: str, model: GPT, tokenizer: Tokenizer, name: str) -> None:
    """Write a model in the form that `gguf_form` gives, in float32."""
    config = model.config
    arrays = names.to_gguf(named_arrays(model), architecture)
    if architecture == "arcee":
        arrays = {k: _in_turn(k, array, config.head_dim) for k, array in arrays.items()}
    keys = _SIZES | (_ROPE_SIZES if architecture == "arcee" else {})
    sizes = {theirs: getattr(config, ours) for theirs, ours in keys.items()}
    facts = {
        "general.architecture": architecture,
        "general.name": name,
        "general.file_type": 0,
        **{f"{architecture}.{k}": v for k, v in {**sizes, **_CONSTANTS[architecture]}.items()},
        **gguf_tokenizer(tokenizer),
    }
    with atomic_write(path) as temporary:
        file = temporary.with_suffix(".gguf")  # MLX adds it where it is missing
        plain = {k: mx.contiguous(array.astype(mx.float32)) for k, array in arrays.items()}
        mx.save_gguf(str(file), plain, {key: _value(value) for key, value in facts.items()})
        file.replace(temporary)


def _value(value: Any) -> Any:
    """A value as MLX writes it: texts as they are, numbers as arrays of GGUF's usual types."""
    first = value[0] if isinstance(value, list) else value
    if isinstance(first, str):
        return value
    kinds = {bool: mx.bool_, float: mx.float32, int: mx.uint32}
    of_tokens = isinstance(value, list) and isinstance(first, int)
    return mx.array(value, mx.int32 if of_tokens else kinds[type(first)])


def _in_turn(name: str, array: mx.array, width: int) -> mx.array:
    """Queries and keys with the coordinates of a head's two halves in turn."""
    if "attn_q." not in name and "attn_k." not in name:
        return array
    heads = array.reshape(-1, 2, width // 2, array.shape[1])
    return heads.swapaxes(1, 2).reshape(array.shape)


def read_gguf(path: Path) -> GPT:
    """The model of a GGUF file that holds GPT-2 or arcee, not quantized.

    Raises:
        RunError: It cannot be read, or is another architecture.
    """
    try:
        loaded: Any = mx.load(str(path), format="gguf", return_metadata=True)
    except RuntimeError as error:
        raise RunError(f"{path}: cannot be read as GGUF ({error})") from error
    arrays, facts = loaded
    architecture = facts.get("general.architecture")
    if architecture not in _BLOCKS:
        raise RunError(f"{path}: holds {architecture}, and only gpt2 and arcee are read")
    config = _config(path, architecture, facts, tied="output.weight" not in arrays)
    ours = names.from_gguf(arrays)
    for name, array in ours.items():
        if architecture == "arcee" and (".W_query." in name or ".W_key." in name):
            heads = array.reshape(-1, config.head_dim // 2, 2, array.shape[1])
            ours[name] = heads.swapaxes(1, 2).reshape(array.shape)
    return standard.model_of(config, ours)


def _config(path: Path, architecture: str, facts: Mapping[str, Any], tied: bool) -> GPTConfig:
    keys = _SIZES | (_ROPE_SIZES if architecture == "arcee" else {})
    try:
        sizes = {
            ours: int(facts[f"{architecture}.{theirs}"].item()) for theirs, ours in keys.items()
        }
    except KeyError as error:
        raise RunError(f"{path}: it does not say {error}") from error
    return GPTConfig(**sizes, **_BLOCKS[architecture], tied_head=tied)
