"""Translate the weight names of a standard model to those in other programs, and back.

GPT-2 stores matrices as (in, out) and joins query, key and value; TransformerLens stores one matrix
per head; the book's names differ from ours only in the norms.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

from mlx_attn.arrays import Arrays
from mlx_attn.errors import ConfigError, RunError

_QKV = ("W_query", "W_key", "W_value")

# Our modules, {i} being a block's number; GPT-2's; llama.cpp's; TransformerLens' weights.
_ROWS = """
tok_emb                    wte               token_embd           embed.W_E
pos_emb                    wpe               position_embd        pos_embed.W_pos
final_norm                 ln_f              output_norm          ln_final.w
out_head                   lm_head           output               unembed.W_U
trf_blocks.{i}.norm1         h.{i}.ln_1          blk.{i}.attn_norm      blocks.{i}.ln1.w
trf_blocks.{i}.norm2         h.{i}.ln_2          blk.{i}.ffn_norm       blocks.{i}.ln2.w
trf_blocks.{i}.att.qkv       h.{i}.attn.c_attn   blk.{i}.attn_qkv       -
trf_blocks.{i}.att.W_query   -                 blk.{i}.attn_q         blocks.{i}.attn.W_Q
trf_blocks.{i}.att.W_key     -                 blk.{i}.attn_k         blocks.{i}.attn.W_K
trf_blocks.{i}.att.W_value   -                 blk.{i}.attn_v         blocks.{i}.attn.W_V
trf_blocks.{i}.att.out_proj  h.{i}.attn.c_proj   blk.{i}.attn_output    blocks.{i}.attn.W_O
trf_blocks.{i}.ff.layers.0   h.{i}.mlp.c_fc      blk.{i}.ffn_up         blocks.{i}.mlp.W_in
trf_blocks.{i}.ff.layers.2   h.{i}.mlp.c_proj    blk.{i}.ffn_down       blocks.{i}.mlp.W_out
"""
_GPT2: dict[str, str] = {}
_GGUF: dict[str, str] = {}
_LENS: dict[str, str] = {}
"""Another program's name of each weight, by ours."""
for _ours, _gpt2, _gguf, _lens in map(str.split, _ROWS.strip().splitlines()):
    for _part in ("weight", "bias"):
        _GPT2[f"{_ours}.{_part}"] = f"{_gpt2}.{_part}"
        _GGUF[f"{_ours}.{_part}"] = f"{_gguf}.{_part}"
    _LENS[f"{_ours}.weight"] = _lens
    _LENS[f"{_ours}.bias"] = _lens.replace(".W_", ".b_").replace(".w", ".b")


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
    """Translate a weight's name; a name that the table lacks stays."""
    number = re.search(r"\.(\d+)\.", name)
    plain = re.sub(r"\.\d+\.", ".{i}.", name, count=1)
    return table.get(plain, plain).replace("{i}", number[1] if number else "")


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in table.items()}


def _with_one_map(arrays: Arrays) -> Arrays:
    """Join W_query, W_key and W_value of each block into `qkv`, (out, in)."""
    joined: Arrays = {}
    for name, array in arrays.items():
        if ".W_query." in name:
            three = [arrays[name.replace("W_query", word)] for word in _QKV]
            joined[name.replace("W_query", "qkv")] = mx.concatenate(three)
        elif not any(f".{word}." in name for word in _QKV):
            joined[name] = array
    return joined


def _with_three_maps(arrays: Arrays) -> Arrays:
    """Invert `_with_one_map`."""
    divided: Arrays = {}
    for name, array in arrays.items():
        if ".att.qkv." in name:
            for word, third in zip(_QKV, mx.split(array, 3), strict=True):
                divided[name.replace(".qkv.", f".{word}.")] = third
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
        if name.endswith(".att.W_query.weight"):
            theirs[name.replace("W_query.weight", "mask")] = mask
    theirs.setdefault("out_head.weight", theirs["tok_emb.weight"])
    return theirs


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


def to_transformer_lens(arrays: Arrays, n_heads: int) -> Arrays:
    """Translate to TransformerLens' names; all its matrices, as W_Q [H, C, D], act as x W."""
    vocab_size, C = arrays["tok_emb.weight"].shape
    theirs = {"unembed.b_U": mx.zeros((vocab_size,))}
    for name, array in {"out_head.weight": arrays["tok_emb.weight"], **arrays}.items():
        renamed = _renamed(name, _LENS)
        match renamed[-3:]:
            case "W_Q" | "W_K" | "W_V":
                array = array.reshape(n_heads, -1, C).swapaxes(1, 2)
            case "b_Q" | "b_K" | "b_V":
                array = array.reshape(n_heads, -1)
            case "W_O":
                array = array.T.reshape(n_heads, -1, C)
            case "W_U" | "_in" | "out":
                array = array.T
        theirs[renamed] = array
    return theirs


def from_transformer_lens(arrays: Arrays) -> Arrays:
    """Invert `to_transformer_lens`."""
    C = arrays["embed.W_E"].shape[1]
    ours: Arrays = {}
    for name, array in arrays.items():
        match name[-3:]:
            case "W_Q" | "W_K" | "W_V":
                array = array.swapaxes(1, 2).reshape(-1, C)
            case "b_Q" | "b_K" | "b_V":
                array = array.reshape(-1)
            case "W_O":
                array = array.reshape(-1, C).T
            case "W_U" | "_in" | "out":
                array = array.T
        ours[_renamed(name, _inverse(_LENS))] = array
    return ours
