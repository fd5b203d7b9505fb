"""The GPT: token ids in, logits out. Names of parts are the book's (section 4.6)."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float, Integer

from mlx_attn.attention import AttentionCache
from mlx_attn.errors import ConfigError
from mlx_attn.model.blocks import TransformerBlock, norm_layer
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.initialisation import initialise


class GPT(nn.Module):
    """A decoder-only transformer language model.

    Args:
        config: Its sizes and choices.

    Example:
        >>> model = GPT(GPTConfig(vocab_size=65, score="merged"))
        >>> logits = model(mx.array([[1, 2, 3]]))
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.tok_emb = nn.Embedding(config.vocab_size, config.emb_dim)
        if config.position == "learned":
            self.pos_emb = nn.Embedding(config.context_length, config.emb_dim)
        self.drop_emb = nn.Dropout(config.drop_rate)
        self.trf_blocks = [TransformerBlock(config) for _ in range(config.n_layers)]
        self.final_norm = norm_layer(config)
        if not config.tied_head:
            self.out_head = nn.Linear(config.emb_dim, config.vocab_size, bias=False)
        initialise(self, config)

    def __call__(
        self,
        tokens: Integer[mx.array, "B T"],
        caches: Sequence[AttentionCache] | None = None,
    ) -> Float[mx.array, "B T V"]:
        """Logits of the next token after each of the given ones.

        Args:
            tokens: Token ids; with caches, only those that the caches do not hold yet.
            caches: One per block, from `new_caches`; they are extended.

        Raises:
            ConfigError: The sequence is longer than the context.
        """
        offset = caches[0].offset if caches else 0
        x = self.drop_emb(self.embed(tokens, offset))
        for i, block in enumerate(self.trf_blocks):
            x = block(x, caches[i] if caches else None)
        x = self.final_norm(x)
        return self.tok_emb.as_linear(x) if self.config.tied_head else self.out_head(x)

    def embed(self, tokens: Integer[mx.array, "B T"], offset: int = 0) -> Float[mx.array, "B T C"]:
        """Token embeddings, and with learned positions those of offset, offset + 1, ..."""
        x = self.tok_emb(tokens)
        if self.config.position != "learned":
            return x
        end = offset + tokens.shape[1]
        if end > self.config.context_length:
            raise ConfigError(
                f"{end} tokens are more than context_length={self.config.context_length}: "
                "give fewer, or train with a longer context"
            )
        return x + self.pos_emb.weight[offset:end]

    def new_caches(self) -> list[AttentionCache]:
        """Empty caches for decoding one batch of sequences."""
        return [AttentionCache() for _ in self.trf_blocks]
