"""What a whole GPT costs: parameters, multiply-adds per token, cache per token."""

from dataclasses import dataclass

from mlx_attn.attention import attention_cost
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.trees import count_parameters


@dataclass(frozen=True, slots=True)
class ModelCost:
    """The cost of a model.

    Attributes:
        parameters: Trained numbers, embeddings included.
        attention_parameters: Those of all attention layers.
        multiply_adds: Per token at full context, forward, attention counted as computed (not the
            causal half alone); embeddings are looked up and cost none.
        cache_floats: Numbers remembered per token when decoding, all layers.
    """

    parameters: int
    attention_parameters: int
    multiply_adds: int
    cache_floats: int


def model_cost(config: GPTConfig) -> ModelCost:
    """Count a model of this configuration; nothing of its size is allocated."""
    attention = attention_cost(config.attention())
    feed_forward = 2 * config.emb_dim * config.hidden_dim
    head = config.emb_dim * config.vocab_size
    return ModelCost(
        parameters=count_parameters(GPT(config)),
        attention_parameters=config.n_layers * attention.parameters,
        multiply_adds=config.n_layers * (attention.multiply_adds + feed_forward) + head,
        cache_floats=config.n_layers * attention.cache_floats,
    )
