"""GGUF, llama.cpp's single-file format: GPT-2, and arcee for RoPE, RMSNorm and squared ReLU.

MLX writes and reads the container. RoPE in llama.cpp rotates neighbouring coordinates of a head,
and this program pairs its two halves, so arcee's queries and keys are stored with them interleaved.
"""

import math
import mmap
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


_NUMBERS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
"""Types of values in a header; of numbers also the bytes."""
_TENSORS = {0: 4, 1: 2, 30: 2}
"""Bytes of a number in float32, float16 and bfloat16, the types of tensors that are read."""
_MOST_AXES = 4


class _Header:
    """A reader of the header of a GGUF file that refuses lengths beyond the end of the file.

    MLX's own reader trusts every length, and reads foreign memory if one is wrong.
    """

    def __init__(self, data: bytes | mmap.mmap):
        self.data, self.place, self.alignment = data, 0, 32
        self.keys: set[bytes] = set()

    def check(self) -> None:
        """Raise a `ValueError` if the file does not match its header."""
        if self._take(4) != b"GGUF" or self._number(4) not in (2, 3):
            raise ValueError("no GGUF of version 2 or 3")
        tensors, facts = self._number(8), self._number(8)
        for _ in range(facts):
            self._fact()
        ends = [self._tensor() for _ in range(tensors)]
        start = -(-self.place // self.alignment) * self.alignment
        if start + max(ends, default=0) > len(self.data):
            raise ValueError("its numbers are cut short")

    def _take(self, size: int) -> bytes:
        taken = self.data[self.place : self.place + size]
        if size > len(self.data) - self.place:
            raise ValueError("a length in its header leads out of the file")
        self.place += size
        return taken

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _fact(self) -> None:
        name, kind, count = self._take(self._number(8)), self._number(4), 1
        self.keys.add(name)
        if name == b"general.alignment" and kind == 4:
            self.alignment = self._number(4)
            if self.alignment not in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
                raise ValueError(f"an alignment of {self.alignment}")
            return
        if kind == _ARRAY:
            kind, count = self._number(4), self._number(8)
        if kind == _STRING:
            for _ in range(count):
                self._take(self._number(8))
        elif kind in _NUMBERS:
            self._take(count * _NUMBERS[kind])
        else:
            raise ValueError(f"a value of type {kind}")

    def _tensor(self) -> int:
        """Return the end of a tensor in bytes from the start of the tensor data."""
        name, axes = self._take(self._number(8)), self._number(4)
        if axes > _MOST_AXES:
            raise ValueError(f"{name!r} has {axes} axes")
        count = math.prod(self._number(8) for _ in range(axes))
        kind, offset = self._number(4), self._number(8)
        if kind not in _TENSORS:
            raise ValueError(f"{name!r} is quantized, which is not read")
        return offset + count * _TENSORS[kind]


def _checked_header(path: Path) -> _Header:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = _Header(data)
        header.check()
        return header


_GENERAL = {b"general.architecture", b"general.name", b"general.file_type"}
"""The general keys of `write_gguf`; other programs write more, or omit the vocabulary size."""


def is_exported_gguf(path: Path) -> bool:
    """Return True if `write_gguf` wrote the file."""
    try:
        keys = _checked_header(path).keys
    except (OSError, ValueError):
        return False
    sizes = {f"{architecture}.vocab_size".encode() for architecture in _SIZES}
    return {key for key in keys if key.startswith(b"general.")} == _GENERAL and bool(keys & sizes)


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
        _checked_header(path)
        loaded: Any = mx.load(str(path), format="gguf", return_metadata=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise RunError(f"{path}: cannot be read as GGUF ({error})") from error
    return loaded
