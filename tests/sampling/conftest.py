from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.catalog import find_variant
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "context_length": 12,
    "emb_dim": 16,
    "n_heads": 2,
    "n_layers": 2,
}


@pytest.fixture
def gpt() -> Callable[..., GPT]:
    """Makes a tiny GPT of any variant whose weights are large enough to have opinions."""

    def make(variant: str = "standard", **settings) -> GPT:
        mx.random.seed(7)
        model = GPT(GPTConfig(**{**SIZES, **find_variant(variant).settings, **settings}))
        model.tok_emb.weight = mx.random.normal(model.tok_emb.weight.shape)
        model.out_head.weight = mx.random.normal(model.out_head.weight.shape)
        model.eval()
        return model

    return make


class Reciter(GPT):
    """A model that is certain of every next token: it recites bytes after four of a prompt."""

    def __init__(self, script: Sequence[int]):
        super().__init__(GPTConfig(**{**SIZES, "context_length": 4 + len(script)}))
        self.script = mx.array([*[0] * 3, *script, 0])
        self.eval()

    def features(self, tokens, caches=None):
        assert caches is not None
        start = caches[0].offset
        for cache in caches:
            cache.offset = start + tokens.shape[1]
        wanted = self.script[start + mx.arange(tokens.shape[1])]
        return mx.broadcast_to(wanted, tokens.shape)[..., None].astype(mx.float32)

    def head(self, x):
        return mx.where(mx.arange(256) == x, 100.0, 0.0)


@pytest.fixture
def reciter() -> Callable[[str], Reciter]:
    return lambda text: Reciter(text.encode())
