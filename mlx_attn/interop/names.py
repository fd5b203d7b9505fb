"""Translate the weight names of a standard model to those in other programs, and back.

Every table maps our names to theirs. `{i}` is a block's number. GPT-2 stores matrices as (in, out)
and joins query, key and value; TransformerLens stores one matrix per head; the book's names differ
from ours only in the norms.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

from mlx_attn.errors import ConfigError, RunError

Arrays = dict[str, mx.array]

_PARTS = ("weight", "bias")
_QKV = ("W_query", "W_key", "W_value")

_GPT2 = {
    "tok_emb": "wte",
    "pos_emb": "wpe",
    "final_norm": "ln_f",
    "out_head": "lm_head",
    "trf_blocks.{i}.norm1": "h.{i}.ln_1",
    "trf_blocks.{i}.norm2": "h.{i}.ln_2",
    "trf_blocks.{i}.att.out_proj": "h.{i}.attn.c_proj",
    "trf_blocks.{i}.ff.layers.0": "h.{i}.mlp.c_fc",
    "trf_blocks.{i}.ff.layers.2": "h.{i}.mlp.c_proj",
}
_GGUF_GPT2 = {
    "tok_emb": "token_embd",
    "pos_emb": "position_embd",
    "final_norm": "output_norm",
    "out_head": "output",
    "trf_blocks.{i}.norm1": "blk.{i}.attn_norm",
    "trf_blocks.{i}.norm2": "blk.{i}.ffn_norm",
    "trf_blocks.{i}.att.out_proj": "blk.{i}.attn_output",
    "trf_blocks.{i}.ff.layers.0": "blk.{i}.ffn_up",
    "trf_blocks.{i}.ff.layers.2": "blk.{i}.ffn_down",
}
_GGUF_ARCEE = _GGUF_GPT2 | {
    "trf_blocks.{i}.att.W_query": "blk.{i}.attn_q",
    "trf_blocks.{i}.att.W_key": "blk.{i}.attn_k",
    "trf_blocks.{i}.att.W_value": "blk.{i}.attn_v",
}


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Turn errors about the names and shapes of foreign arrays into one that names the file.

    Raises:
        RunError: An array is missing, or has an impossible shape.
    """
    try:
        yield
    except (ConfigError, RunError):
        raise
    except (ValueError, KeyError, IndexError) as error:
        raise RunError(f"{path}: no model that is known here has such arrays ({error})") from error


def _renamed(name: str, table: Mapping[str, str]) -> str:
    """Replace the module in a weight's name; keep the name if the table lacks the module."""
    number = re.search(r"\.(\d+)\.", name)
    i = number[1] if number else ""
    module, _, part = name.rpartition(".")
    plain = re.sub(r"^(trf_blocks|h|blk|blocks)\.\d+", r"\1.{i}", module)
    return f"{table.get(plain, plain).replace('{i}', i)}.{part}"


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in table.items()}


def _blocks(arrays: Iterable[str]) -> range:
    """Return the range of block numbers of a standard model."""
    numbers = {int(match[1]) for name in arrays if (match := re.match(r"trf_blocks\.(\d+)", name))}
    return range(len(numbers))


def _joined(arrays: Arrays, i: int, part: str) -> mx.array:
    """Join W_query, W_key and W_value of a block into one array, (out, in)."""
    return mx.concatenate([arrays[f"trf_blocks.{i}.att.{name}.{part}"] for name in _QKV])


def _divided(array: mx.array, i: int, part: str) -> Arrays:
    return {
        f"trf_blocks.{i}.att.{name}.{part}": third
        for name, third in zip(_QKV, mx.split(array, 3), strict=True)
    }


def to_gpt2(arrays: Arrays) -> Arrays:
    """Translate to OpenAI's names without a prefix, which mlx-lm and transformers both read."""
    theirs = {
        _renamed(name, _GPT2): array.T if _is_matrix(name) else array
        for name, array in arrays.items()
        if not any(f".{word}." in name for word in _QKV)
    }
    for i in _blocks(arrays):
        theirs[f"h.{i}.attn.c_attn.weight"] = _joined(arrays, i, "weight").T
        theirs[f"h.{i}.attn.c_attn.bias"] = _joined(arrays, i, "bias")
    return theirs


def from_gpt2(arrays: Arrays) -> Arrays:
    """Invert `to_gpt2`, without a prefix `transformer.` and without buffers."""
    plain = {name.removeprefix("transformer."): array for name, array in arrays.items()}
    ours: Arrays = {}
    for name, array in plain.items():
        if joined := re.fullmatch(r"h\.(\d+)\.attn\.c_attn\.(weight|bias)", name):
            i, part = int(joined[1]), joined[2]
            ours |= _divided(array.T if part == "weight" else array, i, part)
        elif not name.endswith((".attn.bias", ".attn.masked_bias")):
            renamed = _renamed(name, _inverse(_GPT2))
            ours[renamed] = array.T if _is_matrix(renamed) else array
    return ours


def _is_matrix(name: str) -> bool:
    """Return True if GPT-2 stores a weight as (in, out)."""
    return name.startswith("trf_blocks.") and name.endswith(".weight") and "norm" not in name


def to_book(arrays: Arrays) -> Arrays:
    """Translate to the book's GPTModel (chapter 4), with the mask that each block registers."""
    context = arrays["pos_emb.weight"].shape[0]
    mask = mx.triu(mx.ones((context, context)), k=1)
    theirs = {_book_norm(name): array for name, array in arrays.items()}
    theirs.setdefault("out_head.weight", theirs["tok_emb.weight"])
    return theirs | {f"trf_blocks.{i}.att.mask": mask for i in _blocks(arrays)}


def _book_norm(name: str) -> str:
    if "norm" not in name:
        return name
    return name.replace(".weight", ".scale").replace(".bias", ".shift")


_BOOK = (
    (r"^_orig_mod\.|^module\.", ""),  # of a compiled model, of a distributed one
    (r"\.att\.proj\.", ".att.out_proj."),
    (r"(norm\d?)\.scale$", r"\1.weight"),
    (r"(norm\d?)\.shift$", r"\1.bias"),
)
"""The spellings of the book's chapters and bonus material, each replaced in turn."""

LORA_ALPHA = 16.0
"""The factor of LoRA's product in the book's appendix E, which no state dict records."""

_CLASSIFIER = (
    "its head has {classes} classes and not a vocabulary's {tokens} tokens: a classifier (the "
    "book's chapter 6) writes no text; import the model it was fine-tuned from"
)


def from_book(arrays: Arrays, lora_alpha: float = LORA_ALPHA) -> Arrays:
    """Translate a state dict of the book to our names, and add LoRA to the matrices it adapts.

    Raises:
        RunError: The arrays belong to a classifier, or not to a GPTModel.
    """
    ours = {_spelled(name): array for name, array in arrays.items() if not name.endswith(".mask")}
    ours = _without_lora(ours, lora_alpha)
    if "tok_emb.weight" not in ours or "trf_blocks.0.norm1.weight" not in ours:
        some = ", ".join(sorted(arrays)[:4]) or "nothing"
        raise RunError(f"no state dict of the book's GPTModel: it holds {some}")
    head = ours.get("out_head.weight", ours["tok_emb.weight"])
    if head.shape[0] != ours["tok_emb.weight"].shape[0] or "out_head.bias" in ours:
        sizes = {"classes": head.shape[0], "tokens": ours["tok_emb.weight"].shape[0]}
        raise RunError(_CLASSIFIER.format(**sizes))
    for i in _blocks(ours):
        for part in _PARTS:
            if (joined := ours.pop(f"trf_blocks.{i}.att.qkv.{part}", None)) is not None:
                ours |= _divided(joined, i, part)
    return ours


def _spelled(name: str) -> str:
    for pattern, ours in _BOOK:
        name = re.sub(pattern, ours, name)
    return name


def _without_lora(arrays: Arrays, alpha: float) -> Arrays:
    """Merge LoRA: x W + alpha x A B = x (W + alpha A B), with all matrices (in, out)."""
    merged = {}
    for name, array in arrays.items():
        plain = name.replace(".linear.", ".")
        prefix = plain.removesuffix(".weight")
        if f"{prefix}.lora.A" in arrays and plain.endswith(".weight"):
            product = arrays[f"{prefix}.lora.A"] @ arrays[f"{prefix}.lora.B"]
            array = array + alpha * product.T
        if ".lora." not in name:
            merged[plain] = array
    return merged


def to_gguf(arrays: Arrays, architecture: str) -> Arrays:
    """Translate to llama.cpp's names for `gpt2` or `arcee`."""
    if architecture == "arcee":
        return {_renamed(name, _GGUF_ARCEE): array for name, array in arrays.items()}
    theirs = {
        _renamed(name, _GGUF_GPT2): array
        for name, array in arrays.items()
        if not any(f".{word}." in name for word in _QKV)
    }
    for i in _blocks(arrays):
        for part in _PARTS:
            theirs[f"blk.{i}.attn_qkv.{part}"] = _joined(arrays, i, part)
    return theirs


def from_gguf(arrays: Arrays) -> Arrays:
    """Invert `to_gguf`."""
    ours: Arrays = {}
    for name, array in arrays.items():
        if joined := re.fullmatch(r"blk\.(\d+)\.attn_qkv\.(weight|bias)", name):
            ours |= _divided(array, int(joined[1]), joined[2])
        else:
            ours[_renamed(name, _inverse(_GGUF_ARCEE))] = array
    return ours


def to_transformer_lens(arrays: Arrays, n_heads: int) -> Arrays:
    """Translate to TransformerLens' names; all its matrices, as W_Q [H, C, D], act as x W."""
    C = arrays["tok_emb.weight"].shape[1]
    head = arrays.get("out_head.weight", arrays["tok_emb.weight"])
    theirs = {
        "embed.W_E": arrays["tok_emb.weight"],
        "pos_embed.W_pos": arrays["pos_emb.weight"],
        "ln_final.w": arrays["final_norm.weight"],
        "ln_final.b": arrays["final_norm.bias"],
        "unembed.W_U": head.T,
        "unembed.b_U": mx.zeros((head.shape[0],)),
    }
    split: dict[str, Callable[[mx.array], mx.array]] = {
        "weight": lambda w: w.reshape(n_heads, -1, C).swapaxes(1, 2),
        "bias": lambda b: b.reshape(n_heads, -1),
    }
    for i in _blocks(arrays):
        ours, block = f"trf_blocks.{i}", f"blocks.{i}"
        for name, letter in zip(_QKV, "QKV", strict=True):
            for part, prefix in (("weight", "W"), ("bias", "b")):
                array = arrays[f"{ours}.att.{name}.{part}"]
                theirs[f"{block}.attn.{prefix}_{letter}"] = split[part](array)
        out = arrays[f"{ours}.att.out_proj.weight"].T
        theirs |= {
            f"{block}.attn.W_O": out.reshape(n_heads, -1, C),
            f"{block}.attn.b_O": arrays[f"{ours}.att.out_proj.bias"],
            f"{block}.mlp.W_in": arrays[f"{ours}.ff.layers.0.weight"].T,
            f"{block}.mlp.b_in": arrays[f"{ours}.ff.layers.0.bias"],
            f"{block}.mlp.W_out": arrays[f"{ours}.ff.layers.2.weight"].T,
            f"{block}.mlp.b_out": arrays[f"{ours}.ff.layers.2.bias"],
        }
        for n in (1, 2):
            theirs[f"{block}.ln{n}.w"] = arrays[f"{ours}.norm{n}.weight"]
            theirs[f"{block}.ln{n}.b"] = arrays[f"{ours}.norm{n}.bias"]
    return theirs


def from_transformer_lens(arrays: Arrays) -> Arrays:
    """Invert `to_transformer_lens`, without the masks that TransformerLens registers."""
    ours = {
        "tok_emb.weight": arrays["embed.W_E"],
        "pos_emb.weight": arrays["pos_embed.W_pos"],
        "final_norm.weight": arrays["ln_final.w"],
        "final_norm.bias": arrays["ln_final.b"],
        "out_head.weight": arrays["unembed.W_U"].T,
    }
    C = ours["tok_emb.weight"].shape[1]
    single = {"W_O": "att.out_proj.weight", "b_O": "att.out_proj.bias"}
    single |= {"W_in": "ff.layers.0.weight", "b_in": "ff.layers.0.bias"}
    single |= {"W_out": "ff.layers.2.weight", "b_out": "ff.layers.2.bias"}
    heads = dict(zip("QKV", _QKV, strict=True))
    for name, array in arrays.items():
        match = re.fullmatch(r"blocks\.(\d+)\.(\w+)\.(\w+)", name)
        if not match:
            continue
        block, module, word = f"trf_blocks.{match[1]}", match[2], match[3]
        if module.startswith("ln"):
            ours[f"{block}.norm{module[2:]}.{'weight' if word == 'w' else 'bias'}"] = array
        elif word in single:
            flat = array.reshape(-1, array.shape[-1]).T if word.startswith("W") else array
            ours[f"{block}.{single[word]}"] = flat
        elif word[:2] in ("W_", "b_"):
            part = "weight" if word.startswith("W") else "bias"
            flat = array.swapaxes(1, 2).reshape(-1, C) if part == "weight" else array.reshape(-1)
            ours[f"{block}.att.{heads[word[2]]}.{part}"] = flat
    return ours
