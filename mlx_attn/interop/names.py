"""Translate the weight names of a standard model to those in other programs, and back.

GPT-2 stores matrices as (in, out) and joins query, key and value; the book's names differ from ours
only in the norms.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlx.core as mx

from mlx_attn.arrays import Arrays
from mlx_attn.errors import RunError

_QKV = ("W_query", "W_key", "W_value")

# Our modules, {i} being a block's number; GPT-2's.
_ROWS = """
tok_emb                      wte
pos_emb                      wpe
final_norm                   ln_f
out_head                     lm_head
trf_blocks.{i}.norm1         h.{i}.ln_1
trf_blocks.{i}.norm2         h.{i}.ln_2
trf_blocks.{i}.att.qkv       h.{i}.attn.c_attn
trf_blocks.{i}.att.out_proj  h.{i}.attn.c_proj
trf_blocks.{i}.ff.layers.0   h.{i}.mlp.c_fc
trf_blocks.{i}.ff.layers.2   h.{i}.mlp.c_proj
"""
_GPT2 = {
    f"{ours}.{part}": f"{theirs}.{part}"
    for ours, theirs in map(str.split, _ROWS.strip().splitlines())
    for part in ("weight", "bias")
}
"""GPT-2's name of each weight, by ours."""
_OURS = {theirs: ours for ours, theirs in _GPT2.items()}


def _renamed(name: str, table: Mapping[str, str]) -> str:
    """Translate a weight's name; a name that the table lacks stays."""
    number = re.search(r"\.(\d+)\.", name)
    plain = re.sub(r"\.\d+\.", ".{i}.", name, count=1)
    return table.get(plain, plain).replace("{i}", number[1] if number else "")


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


def _is_matrix(name: str) -> bool:
    """Return True if GPT-2 stores a weight as (in, out)."""
    return name.startswith("trf_blocks.") and name.endswith(".weight") and "norm" not in name


_TO_BOOK = ((r"(norm\d?)\.weight$", r"\1.scale"), (r"(norm\d?)\.bias$", r"\1.shift"))


def to_book(arrays: Arrays) -> Arrays:
    """Translate to the book's GPTModel (chapter 4), with the mask that each block registers."""
    context = arrays["pos_emb.weight"].shape[0]
    mask = mx.triu(mx.ones((context, context)), k=1)
    queries = [name for name in arrays if name.endswith(".att.W_query.weight")]
    masks = {name.replace("W_query.weight", "mask"): mask for name in queries}
    head = {"out_head.weight": arrays["tok_emb.weight"]}
    return head | _respelled(arrays, _TO_BOOK) | masks


# Reading.

_PREFIXES = re.compile(r"^(module\.|_orig_mod\.|model\.|transformer\.)+")
"""Of a distributed model, of a compiled one, and of the modules that a language model wraps."""
_BOOK = (
    (r"\.att\.proj\.", ".att.out_proj."),
    (r"\.att\.W_DKV\.", ".att.W_latent."),
    (r"\.att\.W_UK\.", ".att.W_up_key."),
    (r"\.att\.W_UV\.", ".att.W_up_value."),
    (r"(norm\d?)\.scale$", r"\1.weight"),
    (r"(norm\d?)\.shift$", r"\1.bias"),
)
"""The spellings of the book's chapters and bonus material, each replaced in turn."""
OPENAI = "model/wte"
"""OpenAI's name of the embedding, in TensorFlow's files, whose matrices are [1, in, out]."""
_OPENAI = (
    (r"^model/", ""),
    (r"/", "."),
    (r"^h(\d)", r"h.\1"),
    (r"^(w[tp]e)$", r"\1.weight"),
    (r"\.[gw]$", ".weight"),
    (r"\.b$", ".bias"),
)
_OTHERS = (
    (r"\.ff\.gate\.|experts|\.fc1\.0\.", "a mixture of experts"),
    (r"\.ff\.fc3\.|\.self_attn\.|\.feed_forward\.", "another architecture, such as Llama or Qwen"),
    (r"\.heads\.\d+\.W_query", "the MultiHeadAttentionWrapper of chapter 3"),
    (r"lora_?[ab]?\b", "LoRA, which PyTorch must first add to the weights that it adapts"),
)
"""Names of models that are not read, and what those are."""
BOOK = "the book's GPTModel"
NANOGPT, WITH_MASKS = "nanoGPT (exact GELU)", "minGPT or old nanoGPT (GELU in the tanh form)"
"""One layout: nanoGPT saved masks only with PyTorch 1, and had minGPT's GELU until May 2023."""
_MASKS = re.compile(r"trf_blocks\.\d+\.att\.mask|h\.\d+\.attn\.(masked_)?bias")


def translated(state: Arrays, path: Path) -> tuple[str, Arrays]:
    """Translate a state dict of the book, GPT-2 or nanoGPT to our names and layout.

    A few words about its format are returned, too. Causal masks are left out. Other names that are
    not known stay, to be refused by them.

    Raises:
        RunError: The arrays belong to a classifier or another kind of model, a mask is not causal,
            or two arrays stand for one weight.
    """
    plain = _without_prefixes(state, path)
    masks = {name: plain.pop(name) for name in [*plain] if _MASKS.fullmatch(name)}
    for name, mask in masks.items():
        if not _is_causal(mask):
            raise RunError(f"{path}: {name} is not the causal mask, the only one computed here")
    if "wte.weight" in plain:
        what, ours = _from_gpt2(plain)
    else:
        what, ours = BOOK, _respelled(plain, _BOOK)
    needed = ("tok_emb.weight", "pos_emb.weight", "trf_blocks.0.ff.layers.0.weight")
    if not all(name in ours and ours[name].ndim == 2 for name in needed):
        some = ", ".join(sorted(state)[:4]) or "nothing"
        raise RunError(f"{path}: no state dict of the book, GPT-2 or nanoGPT: it holds {some}")
    tokens = ours["tok_emb.weight"].shape[0]
    classes = ours.get("out_head.weight", ours["tok_emb.weight"]).shape[0]
    if classes != tokens:
        raise RunError(
            f"{path}: its head has {classes} classes and not a vocabulary's {tokens} tokens: a "
            "classifier (the book's chapter 6) writes no text; import the model it was fine-tuned "
            "from"
        )
    divided = _with_three_maps(ours)
    joined = sum(".att.qkv." in name for name in ours)
    if len(divided) != len(state) - len(masks) + 2 * joined:
        raise RunError(f"{path}: two of its arrays stand for one weight")
    if what == BOOK:
        divided |= _output_biases(divided)
    return WITH_MASKS if what == NANOGPT and masks else what, divided


def _without_prefixes(state: Arrays, path: Path) -> Arrays:
    if OPENAI in state:
        matrices = {name: array[0] if array.ndim == 3 else array for name, array in state.items()}
        state = _respelled(matrices, _OPENAI)
    plain = {_PREFIXES.sub("", name): array for name, array in state.items()}
    for pattern, other in _OTHERS:
        if name := next((name for name in plain if re.search(pattern, name, re.IGNORECASE)), ""):
            raise RunError(f"{path}: {name} is of {other}, and that is not read")
    return plain


def _is_causal(mask: mx.array) -> bool:
    """Return True for a mask of later tokens, its complement, or the number that GPT-2 puts there.

    The book's mask [T, T] is 1 for later tokens, and GPT-2's [1, 1, T, T] is 1 for the others.
    """
    if mask.ndim == 0:
        return True
    T = mask.shape[-1]
    later, rows = mx.triu(mx.ones((T, T)), k=1), mask.reshape(-1, T).astype(mx.float32)
    return rows.shape == (T, T) and any(
        bool(mx.array_equal(rows, each).item()) for each in (later, 1 - later)
    )


def _from_gpt2(arrays: Arrays) -> tuple[str, Arrays]:
    """Invert `to_gpt2`; nanoGPT has the same names, with matrices as (out, in)."""
    first, emb_dim = arrays.get("h.0.attn.c_attn.weight"), arrays["wte.weight"].shape[1]
    has_columns = first is not None and first.shape[0] == 3 * emb_dim
    ours: Arrays = {}
    for name, array in arrays.items():
        renamed = _renamed(name, _OURS)
        ours[renamed] = array.T if _is_matrix(renamed) and not has_columns else array
    return NANOGPT if has_columns else "GPT-2", ours


def _respelled(arrays: Arrays, table: Sequence[tuple[str, str]]) -> Arrays:
    ours: Arrays = {}
    for name, array in arrays.items():
        for pattern, spelling in table:
            name = re.sub(pattern, spelling, name)
        ours[name] = array
    return ours


def _output_biases(arrays: Arrays) -> Arrays:
    """Return biases 0 if no output map has one, as in the book's grouped-query attention."""
    weights = [name for name in arrays if name.endswith(".att.out_proj.weight")]
    biases = {name.replace("weight", "bias"): arrays[name].shape[0] for name in weights}
    return {} if biases.keys() & arrays.keys() else {k: mx.zeros(n) for k, n in biases.items()}
