"""Translate the weight names of a standard model to those in other programs, and back.

Every table maps our names to theirs. `{i}` is a block's number. GPT-2 stores matrices as (in, out)
and joins query, key and value; TransformerLens stores one matrix per head; the book's names differ
from ours only in the norms.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

from mlx_attn.arrays import Arrays
from mlx_attn.errors import ConfigError, RunError

_QKV = ("W_query", "W_key", "W_value")

_GPT2 = {
    "tok_emb": "wte",
    "pos_emb": "wpe",
    "final_norm": "ln_f",
    "out_head": "lm_head",
    "trf_blocks.{i}.norm1": "h.{i}.ln_1",
    "trf_blocks.{i}.norm2": "h.{i}.ln_2",
    "trf_blocks.{i}.att.qkv": "h.{i}.attn.c_attn",
    "trf_blocks.{i}.att.out_proj": "h.{i}.attn.c_proj",
    "trf_blocks.{i}.ff.layers.0": "h.{i}.mlp.c_fc",
    "trf_blocks.{i}.ff.layers.2": "h.{i}.mlp.c_proj",
}
_GGUF = {
    "tok_emb": "token_embd",
    "pos_emb": "position_embd",
    "final_norm": "output_norm",
    "out_head": "output",
    "trf_blocks.{i}.norm1": "blk.{i}.attn_norm",
    "trf_blocks.{i}.norm2": "blk.{i}.ffn_norm",
    "trf_blocks.{i}.att.qkv": "blk.{i}.attn_qkv",
    "trf_blocks.{i}.att.W_query": "blk.{i}.attn_q",
    "trf_blocks.{i}.att.W_key": "blk.{i}.attn_k",
    "trf_blocks.{i}.att.W_value": "blk.{i}.attn_v",
    "trf_blocks.{i}.att.out_proj": "blk.{i}.attn_output",
    "trf_blocks.{i}.ff.layers.0": "blk.{i}.ffn_up",
    "trf_blocks.{i}.ff.layers.2": "blk.{i}.ffn_down",
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
    plain = re.sub(r"^(trf_blocks|h|blk)\.\d+", r"\1.{i}", module)
    return f"{table.get(plain, plain).replace('{i}', i)}.{part}"


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in table.items()}


def _blocks(arrays: Iterable[str]) -> range:
    """Return the range of block numbers of a standard model."""
    numbers = {int(match[1]) for name in arrays if (match := re.match(r"trf_blocks\.(\d+)", name))}
    return range(len(numbers))


def _with_one_map(arrays: Arrays) -> Arrays:
    """Join W_query, W_key and W_value of each block into `qkv`, (out, in)."""
    joined = {k: array for k, array in arrays.items() if not any(f".{word}." in k for word in _QKV)}
    for i in _blocks(arrays):
        for part in ("weight", "bias"):
            three = [arrays[f"trf_blocks.{i}.att.{word}.{part}"] for word in _QKV]
            joined[f"trf_blocks.{i}.att.qkv.{part}"] = mx.concatenate(three)
    return joined


def _with_three_maps(arrays: Arrays) -> Arrays:
    """Invert `_with_one_map`."""
    divided: Arrays = {}
    for name, array in arrays.items():
        if ".att.qkv." in name:
            thirds = mx.split(array, 3)
            names = (name.replace(".qkv.", f".{word}.") for word in _QKV)
            divided |= dict(zip(names, thirds, strict=True))
        else:
            divided[name] = array
    return divided


def to_gpt2(arrays: Arrays) -> Arrays:
    """Translate to OpenAI's names without a prefix, which mlx-lm and transformers both read."""
    return {
        _renamed(name, _GPT2): array.T if _is_matrix(name) else array
        for name, array in _with_one_map(arrays).items()
    }


def from_gpt2(arrays: Arrays) -> Arrays:
    """Invert `to_gpt2`, without a prefix `transformer.` and without buffers."""
    ours: Arrays = {}
    for name, array in arrays.items():
        if not name.endswith((".attn.bias", ".attn.masked_bias")):
            renamed = _renamed(name.removeprefix("transformer."), _inverse(_GPT2))
            ours[renamed] = array.T if _is_matrix(renamed) else array
    return _with_three_maps(ours)


def _is_matrix(name: str) -> bool:
    """Return True if GPT-2 stores a weight as (in, out)."""
    return name.startswith("trf_blocks.") and name.endswith(".weight") and "norm" not in name


def to_book(arrays: Arrays) -> Arrays:
    """Translate to the book's GPTModel (chapter 4), with the mask that each block registers."""
    context = arrays["pos_emb.weight"].shape[0]
    mask = mx.triu(mx.ones((context, context)), k=1)
    theirs: Arrays = {}
    for name, array in arrays.items():
        scaled = re.sub(r"(norm\d?)\.weight$", r"\1.scale", name)
        theirs[re.sub(r"(norm\d?)\.bias$", r"\1.shift", scaled)] = array
    theirs.setdefault("out_head.weight", theirs["tok_emb.weight"])
    return theirs | {f"trf_blocks.{i}.att.mask": mask for i in _blocks(arrays)}


_BOOK = (
    (r"^_orig_mod\.|^module\.", ""),  # of a compiled model, of a distributed one
    (r"\.att\.proj\.", ".att.out_proj."),
    (r"(norm\d?)\.scale$", r"\1.weight"),
    (r"(norm\d?)\.shift$", r"\1.bias"),
)
"""The spellings of the book's chapters and bonus material, each replaced in turn."""

LORA_ALPHA = 16.0
"""The factor of LoRA's product in the book's appendix E, which no state dict records."""


def from_book(arrays: Arrays, lora_alpha: float = LORA_ALPHA) -> Arrays:
    """Translate a state dict of the book to our names, and add LoRA to the matrices it adapts.

    Raises:
        RunError: The arrays belong to a classifier, or not to a GPTModel.
    """
    ours: Arrays = {}
    for name, array in arrays.items():
        for pattern, spelling in _BOOK:
            name = re.sub(pattern, spelling, name)
        if not name.endswith(".mask"):
            ours[name] = array
    ours = _without_lora(ours, lora_alpha)
    if "tok_emb.weight" not in ours or "trf_blocks.0.norm1.weight" not in ours:
        some = ", ".join(sorted(arrays)[:4]) or "nothing"
        raise RunError(f"no state dict of the book's GPTModel: it holds {some}")
    tokens = ours["tok_emb.weight"].shape[0]
    classes = ours.get("out_head.weight", ours["tok_emb.weight"]).shape[0]
    if classes != tokens or "out_head.bias" in ours:
        raise RunError(
            f"its head has {classes} classes and not a vocabulary's {tokens} tokens: a classifier "
            "(the book's chapter 6) writes no text; import the model it was fine-tuned from"
        )
    return _with_three_maps(ours)


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
    """Translate to llama.cpp's names for `gpt2`, which joins query, key and value, or `arcee`."""
    ours = arrays if architecture == "arcee" else _with_one_map(arrays)
    return {_renamed(name, _GGUF): array for name, array in ours.items()}


def from_gguf(arrays: Arrays) -> Arrays:
    """Invert `to_gguf`."""
    ours = {_renamed(name, _inverse(_GGUF)): array for name, array in arrays.items()}
    return _with_three_maps(ours)


_LENS = {
    "tok_emb.weight": "embed.W_E",
    "pos_emb.weight": "pos_embed.W_pos",
    "final_norm.weight": "ln_final.w",
    "final_norm.bias": "ln_final.b",
    "out_head.weight": "unembed.W_U",
    "norm1.weight": "ln1.w",
    "norm1.bias": "ln1.b",
    "norm2.weight": "ln2.w",
    "norm2.bias": "ln2.b",
    "att.W_query.weight": "attn.W_Q",
    "att.W_query.bias": "attn.b_Q",
    "att.W_key.weight": "attn.W_K",
    "att.W_key.bias": "attn.b_K",
    "att.W_value.weight": "attn.W_V",
    "att.W_value.bias": "attn.b_V",
    "att.out_proj.weight": "attn.W_O",
    "att.out_proj.bias": "attn.b_O",
    "ff.layers.0.weight": "mlp.W_in",
    "ff.layers.0.bias": "mlp.b_in",
    "ff.layers.2.weight": "mlp.W_out",
    "ff.layers.2.bias": "mlp.b_out",
}
"""TransformerLens' names; those of a block come after `blocks.{i}.`."""


def to_transformer_lens(arrays: Arrays, n_heads: int) -> Arrays:
    """Translate to TransformerLens' names; all its matrices, as W_Q [H, C, D], act as x W."""
    vocab_size, C = arrays["tok_emb.weight"].shape
    theirs = {"unembed.b_U": mx.zeros((vocab_size,))}
    for name, array in {"out_head.weight": arrays["tok_emb.weight"], **arrays}.items():
        inner = re.sub(r"^trf_blocks\.\d+\.", "", name)
        word = _LENS[inner]
        match word[-3:]:
            case "W_Q" | "W_K" | "W_V":
                array = array.reshape(n_heads, -1, C).swapaxes(1, 2)
            case "b_Q" | "b_K" | "b_V":
                array = array.reshape(n_heads, -1)
            case "W_O":
                array = array.T.reshape(n_heads, -1, C)
            case "W_U" | "_in" | "out":
                array = array.T
        theirs[name.removeprefix("trf_").removesuffix(inner) + word] = array
    return theirs


def from_transformer_lens(arrays: Arrays) -> Arrays:
    """Invert `to_transformer_lens`, without the masks that TransformerLens registers."""
    C = arrays["embed.W_E"].shape[1]
    names = _inverse(_LENS)
    ours: Arrays = {}
    for name, array in arrays.items():
        word = re.sub(r"^blocks\.\d+\.", "", name)
        match word[-3:]:
            case "W_Q" | "W_K" | "W_V":
                array = array.swapaxes(1, 2).reshape(-1, C)
            case "b_Q" | "b_K" | "b_V":
                array = array.reshape(-1)
            case "W_O":
                array = array.reshape(-1, C).T
            case "W_U" | "_in" | "out":
                array = array.T
        if word in names:
            block = name.removesuffix(word)
            ours[f"trf_{block}{names[word]}" if block else names[word]] = array
    return ours
