"""Every named activation of one forward pass, and the forward pass with some of them changed.

    logits, activations = run_with_cache(model, tokens)
    activations["trf_blocks.0.att.attn_weights"]  # [B, H, T, T]

    off = {"trf_blocks.0.att.context_vec": lambda heads: heads * keep[:, None, None]}
    logits, _ = run_with_cache(model, tokens, off)  # without the heads where keep is 0

The names extend the names of the weights, and are the book's names if it has one. In the order of
computation, for every block `trf_blocks.L`:

    x                [B, T, C]     the residual stream before the block
    norm1            [B, T, C]     the input of attention
    att.raw_queries  [B, H, T, K]  as the score map makes them; raw_keys likewise
    att.queries      [B, H, T, K]  normalized and rotated, as the scores see them
    att.keys         [B, H_k, T, K]
    att.values       [B, H_v, T, D]
    att.raw_scores   [B, H, T, T]  scale q k^T
    att.attn_scores  [B, H, T, T]  the same through the logits hooks, before the mask
    att.mask         [..., T, T]   added to them: minus infinity, and ALiBi's bias
    att.masked       [B, H, T, T]  their sum
    att.attn_weights [B, H, T, T]
    att.context_vec  [B, H, T, D]  attn_weights v, one vector per head
    att.out          [B, T, C]     added by attention to the residual stream
    x_mid            [B, T, C]     the residual stream after attention
    norm2            [B, T, C]     the input of the feed-forward layer
    ff               [B, T, C]     added by the feed-forward layer
    x_out            [B, T, C]     the residual stream after the block

`embedding` comes before them; `final_norm` [B, T, C] and `logits` [B, T, V] come after them. This
pass runs without dropout and fused kernels, so its logits differ from the model's by rounding.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
from jaxtyping import Float, Integer

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import Positions
from mlx_attn.attention.layer import Inputs, Outputs, attention_scores
from mlx_attn.errors import ConfigError, did_you_mean
from mlx_attn.machine.operations import multiply_heads
from mlx_attn.model.gpt import GPT, TransformerBlock

Edits = Mapping[str, Callable[[mx.array], mx.array]]

_Record = Callable[[str, mx.array], mx.array]
"""Stores an activation under its name, after the edit of that name, and returns it."""


def run_with_cache(
    model: GPT, tokens: Integer[mx.array, "B T"], edits: Edits | None = None
) -> tuple[Float[mx.array, "B T V"], dict[str, mx.array]]:
    """Return the logits and every activation by name, lazily, with some of them edited.

    The training mode does not matter.

    Args:
        model: Any GPT.
        tokens: Token ids.
        edits: Functions by the name of the activation that each replaces. Later computations use
            the value that the function returns.

    Raises:
        ConfigError: No activation has the name of an edit, or an edit changes the shape.
    """
    edits, activations = edits or {}, {}

    def record(name: str, value: mx.array) -> mx.array:
        edited = edits[name](value) if name in edits else value
        if edited.shape != value.shape:
            raise ConfigError(
                f"the edit of '{name}' returned the shape {edited.shape} for {value.shape}: "
                "return an array of the same shape"
            )
        activations[name] = edited
        return edited

    # [B, T] -> [B, T, C]. The carry takes the first layer's values to layers that read them.
    x, carry = record("embedding", model.embed(tokens)), {}
    for layer, block in enumerate(model.trf_blocks):
        x = _block(block, x, carry, record, f"trf_blocks.{layer}")
    x = record("final_norm", model.final_norm(x))
    logits = record("logits", model.unembed(x))
    # The names are complete only now.
    for name in edits:
        if name not in activations:
            raise ConfigError(f"no activation is named '{name}'{did_you_mean(name, activations)}")
    return logits, activations


def _block(
    block: TransformerBlock, x: Inputs, carry: dict[str, Any], record: _Record, name: str
) -> Inputs:
    x = record(f"{name}.x", x)
    y = record(f"{name}.norm1", block.norm1(x))
    x = record(f"{name}.x_mid", x + _attention(block.att, y, carry, record, name))
    y = record(f"{name}.norm2", block.norm2(x))
    return record(f"{name}.x_out", x + record(f"{name}.ff", block.ff(y)))


def _attention(
    attention: Attention, x: Inputs, carry: dict[str, Any], record: _Record, name: str
) -> Outputs:
    # [B, T, C] -> [B, H, T, K] and [B, H_k, T, K]
    q, k = attention.score(x, None, carry)
    q, k = record(f"{name}.att.raw_queries", q), record(f"{name}.att.raw_keys", k)
    # Values computed from the keys read them before the rotation, which depends on position.
    # [B, H_v, T, D]
    v = attention.value(x, k, None, carry)
    q = record(f"{name}.att.queries", attention.normalize_and_rotate(q, 0))
    # Keys of an earlier layer are normalized and rotated already.
    is_reader = attention.config.cross_layer == "reader"
    k = record(f"{name}.att.keys", k if is_reader else attention.normalize_and_rotate(k, 0))
    v = record(f"{name}.att.values", v)
    if attention.config.cross_layer:
        carry["shared"] = (k, v, Positions.of_text(x.shape[1]))
    # [B, H, T, K] x [B, H_k, T, K] -> [B, H, T, T]; H / H_k queries share a key.
    scores = record(f"{name}.att.raw_scores", attention_scores(q, k, attention.config.scale))
    memories = attention.remembered(x)
    scores = record(f"{name}.att.attn_scores", attention.logits(scores, *memories))
    # Added after the hooks: talking heads multiply by 0, and 0 times minus infinity is NaN.
    mask = record(f"{name}.att.mask", attention.mask(Positions.of_text(x.shape[1])))
    masked = record(f"{name}.att.masked", scores + mask)
    # Each row is a distribution over the visible keys; a mixing without softmax may differ.
    weights = attention.maps.mixing.apply(
        attention, masked, *attention.read_by_mixing(q, k, masked, memories)
    )
    weights = record(f"{name}.att.attn_weights", weights.astype(q.dtype))
    # [B, H, T, T] x [B, H_v, T, D] -> [B, H, T, D]
    heads = record(f"{name}.att.context_vec", multiply_heads(weights, v))
    return record(f"{name}.att.out", attention.output(heads, x))
