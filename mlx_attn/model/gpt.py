"""The GPT: feed-forward layers and blocks around the attention."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.arrays import check_weights
from mlx_attn.attention.attention import attention_layer
from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.layer import Inputs
from mlx_attn.errors import ConfigError
from mlx_attn.machine.graphs import Differentiable
from mlx_attn.machine.layers import LayerNorm, RMSNorm, TokenTable
from mlx_attn.machine.operations import gelu
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.init import initialise, kept_random_state


@Differentiable
def squared_relu(x: mx.array) -> mx.array:
    """Compute max(0, x)^2 (Primer, arXiv:2109.08668)."""
    return mx.square(mx.maximum(x, 0))


@squared_relu.vjp
def _squared_relu_vjp(x: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    # Half the operations of the two derivatives in a row.
    return cotangent * (2 * mx.maximum(x, 0))


ACTIVATIONS = {"gelu": gelu, "gelu_exact": nn.gelu, "relu2": squared_relu}
"""By name; the exact GELU, x (1 + erf(x / sqrt(2))) / 2, is nanoGPT's."""


class Activation(nn.Module):
    """A function of each element, by its name in `ACTIVATIONS`."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def __call__(self, x: mx.array) -> mx.array:
        """Return the activation of each element."""
        return ACTIVATIONS[self.name](x)


def _norm_layer(config: GPTConfig) -> Any:
    """Return the configuration's normalisation of the residual stream."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.emb_dim, eps=1e-6)
    return LayerNorm(config.emb_dim, eps=1e-5, bias=config.bias)


class FeedForward(nn.Module):
    """activation(x W_1) W_2, for each token separately (the book's section 4.3)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        # The names are the book's.
        self.layers = [
            nn.Linear(config.emb_dim, config.hidden_dim, bias=config.bias),
            Activation(config.activation),
            nn.Linear(config.hidden_dim, config.emb_dim, bias=config.bias),
        ]

    def __call__(self, x: Inputs) -> Inputs:
        """Return the layer's output."""
        for layer in self.layers:  # [B, T, C] -> [B, T, hidden] -> [B, T, C]
            x = layer(x)
        return x


class TransformerBlock(nn.Module):
    """x + att(norm1 x), then x + ff(norm2 x) (the book's section 4.5).

    The residual stream itself is never normalized between blocks (GPT-2).
    """

    def __init__(self, config: GPTConfig, layer: int):
        super().__init__()
        self.att = attention_layer(config.attention(layer))  # a pattern gives each layer its own
        self.ff = FeedForward(config)
        self.norm1 = _norm_layer(config)
        self.norm2 = _norm_layer(config)
        self.drop_shortcut = nn.Dropout(config.drop_rate)

    def __call__(
        self, x: Inputs, cache: KVCache | None = None, carry: dict[str, Any] | None = None
    ) -> Inputs:
        """Return the residual stream after this block."""
        # [B, T, C]: both branches read the normalized stream, and add to the stream itself.
        x = x + self.drop_shortcut(self.att(self.norm1(x), cache, carry))
        return x + self.drop_shortcut(self.ff(self.norm2(x)))


class GPT(nn.Module):
    """A decoder-only transformer language model.

    Args:
        config: Its sizes and choices.
        seed: Seed of the starting weights, each drawn by its name; with None they are left
            as MLX's layers draw them, for a model whose weights are loaded or only counted.

    Example:
        >>> model = GPT(GPTConfig(vocab_size=65, score="merged"))
        >>> logits = model(mx.array([[1, 2, 3]]))
    """

    def __init__(self, config: GPTConfig, seed: int | None = 0):
        super().__init__()
        self.config = config
        with kept_random_state():
            self.tok_emb = TokenTable(config.vocab_size, config.emb_dim)  # [V, C]
            if config.position == "learned":
                self.pos_emb = nn.Embedding(config.context_length, config.emb_dim)  # [T, C]
            self.drop_emb = nn.Dropout(config.drop_rate)
            self.trf_blocks = [TransformerBlock(config, layer) for layer in range(config.n_layers)]
            self.final_norm = _norm_layer(config)
            if not config.tied_head:  # else `unembed` reads logits with the token embeddings
                self.out_head = nn.Linear(config.emb_dim, config.vocab_size, bias=False)
            if seed is not None:
                initialise(self, config, seed)

    def __call__(
        self, tokens: Integer[mx.array, "B T"], caches: Sequence[KVCache] | None = None
    ) -> Float[mx.array, "B T V"]:
        """Return the logits of the next token after each of `tokens`.

        Args:
            tokens: Token ids; with caches, only those that the caches do not hold yet.
            caches: From `new_caches`, one per block; they are extended.

        Raises:
            ConfigError: The sequence is longer than the caches, or than the learned positions.
        """
        return self.head(self.features(tokens, caches))

    def features(
        self, tokens: Integer[mx.array, "B T"], caches: Sequence[KVCache] | None = None
    ) -> Inputs:
        """Return the residual stream after the last block; arguments as for logits."""
        x = self.drop_emb(self.embed(tokens, caches))  # [B, T] -> [B, T, C]
        carry = {}  # what layers pass on, such as the first layer's values
        for i, block in enumerate(self.trf_blocks):
            x = block(x, caches[i] if caches else None, carry)
        return x

    def head(self, x: Inputs) -> Float[mx.array, "B T V"]:
        """Return the logits of the next token, from the residual stream."""
        return self.unembed(self.final_norm(x))

    def unembed(self, x: Inputs) -> Float[mx.array, "B T V"]:
        """Return the logits of the next token, from the normalized residual stream."""
        # [B, T, C] x [C, V] -> [B, T, V]
        return self.tok_emb.as_linear(x) if self.config.tied_head else self.out_head(x)

    def embed(
        self, tokens: Integer[mx.array, "B T"], caches: Sequence[KVCache] | None = None
    ) -> Inputs:
        """Return token embeddings, with learned positions plus theirs."""
        x, offset = self.tok_emb(tokens), caches[0].offset if caches else 0
        if self.config.position != "learned":
            return x
        T = tokens.shape[1]
        if isinstance(offset, int) and offset + T > self.config.context_length:
            raise ConfigError(
                f"{offset + T} tokens are more than context_length={self.config.context_length}: "
                "give fewer, or train with a longer context"
            )
        # [B, T, C] + [T, C]
        if not isinstance(self.pos_emb, nn.Embedding):  # quantized, or another library's
            return x + self.pos_emb(offset + mx.arange(T))
        if isinstance(offset, int):
            return x + self.pos_emb.weight[offset : offset + T]
        # In a compiled decoding step the offset is an array, and so is the start of the slice.
        return x + mx.slice(self.pos_emb.weight, offset, (0,), (T, x.shape[2]))

    def new_caches(self, length: int | None = None) -> list[KVCache]:
        """Return empty caches for one batch of sequences, as long as the context or `length`."""
        length = length or self.config.context_length
        layers = [block.att.config for block in self.trf_blocks]
        return [KVCache(length, layer.cache_window, layer.caches_tokens) for layer in layers]


def gpt_from(
    config: GPTConfig,
    arrays: Mapping[str, mx.array | np.ndarray],
    place: str | Path,
    dtype: mx.Dtype = mx.float32,
) -> GPT:
    """Return a model with these weights, as numbers of this type, in evaluation mode.

    Raises:
        RunError: The arrays are not the model's weights; the message begins with `place`.
    """
    model, weights = GPT(config, seed=None), dict[str, mx.array]()
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):  # whole numbers keep their type
            array = mx.array(array, dtype if array.dtype == np.float64 else None)
        elif mx.issubdtype(array.dtype, mx.floating):
            array = array.astype(dtype)
        # In rows: MLX copies a view, such as the columns of GPT-2's c_attn, for every product.
        weights[name] = mx.contiguous(array)
    check_weights(place, model, weights)
    model.load_weights(list(weights.items()))
    model.eval()
    return model
