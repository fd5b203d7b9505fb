"""What attention and a model cost: trained numbers, multiply-adds, and what decoding caches.

Everything is counted from shapes; nothing of a model's size is allocated.
"""

from collections import Counter
from dataclasses import asdict, dataclass

import mlx.core as mx

from mlx_attn.arrays import count_parameters, named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """The cost of one layer."""

    parameters: int  # trained numbers
    multiply_adds: int  # per token, at full context, in the form used for training
    cache_floats: int  # numbers that decoding caches of each token
    state_floats: int  # numbers that decoding caches of a whole text
    cache_bytes: int  # of the cache at full context, in float32


def attention_cost(config: AttentionConfig) -> AttentionCost:
    """Count one layer of this configuration, from the shapes of its maps.

    A window is counted as if only the keys that it shows were multiplied.
    """
    layer = Attention(config)
    arrays = named_arrays(layer.trainable_parameters())
    # Matrices multiply a token; biases and gains are only counted.
    matrices = sum(w.size for name, w in arrays.items() if name.endswith("weight") and w.ndim > 1)
    _, value_width = layer.maps.value.shape(config)
    seen = min(config.cache_window or config.context_length, config.context_length)
    more = sum(choice.multiply_adds(config) for choice in layer.maps.all)
    # A token shows what is cached. Its arrays stay lazy, so a model of any size is counted.
    cache = KVCache(1, caches_tokens=config.caches_tokens)
    if config.cross_layer != "reader":
        layer(mx.zeros((1, 1, config.d_in)), cache)
    cached = sum(array.size for array in cache.buffers)
    of_tokens = cached if config.caches_tokens else 0
    of_text = sum(rows.size for rows in cache.rows) + cached - of_tokens
    return AttentionCost(
        parameters=sum(array.size for array in arrays.values()),
        multiply_adds=matrices + config.n_maps * seen * (config.key_width + value_width) + more,
        cache_floats=of_tokens,
        state_floats=of_text,
        cache_bytes=4 * (of_tokens * seen + of_text),
    )


@dataclass(frozen=True, slots=True)
class ModelCost(AttentionCost):
    """The cost of a model: the sums over all layers, of the embeddings and the rest too.

    Attention is counted as computed (not the causal half only); embeddings are looked up and cost
    no multiply-adds.
    """

    attention_parameters: int


def model_cost(config: GPTConfig) -> ModelCost:
    """Count a model of this configuration; nothing of its size is allocated."""
    # Equal layers are measured once.
    layers = Counter(config.attention(layer) for layer in range(config.n_layers))
    total: Counter[str] = Counter()
    for layer, n in layers.items():
        total.update({key: n * number for key, number in asdict(attention_cost(layer)).items()})
    # Multiply-adds per token: [C] x [C, hidden] and [hidden] x [hidden, C].
    feed_forward = 2 * config.emb_dim * config.hidden_dim
    head = config.emb_dim * config.vocab_size  # [C] x [C, V]
    total["multiply_adds"] += config.n_layers * feed_forward + head
    total["attention_parameters"] = total["parameters"]
    total["parameters"] = count_parameters(GPT(config, seed=None))
    return ModelCost(**total)
