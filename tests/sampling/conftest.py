from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.config import find_variant
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
    """A model that is certain of every next token: it recites bytes, whatever it reads."""

    def __init__(self, script: Sequence[int], context_length: int = 1000):
        super().__init__(GPTConfig(**{**SIZES, "context_length": context_length}))
        self.script = iter(script)
        self.eval()

    def __call__(self, tokens, caches=None):
        wanted = next(self.script, 0)
        B, T = tokens.shape
        return mx.broadcast_to(mx.where(mx.arange(256) == wanted, 100.0, 0.0), (B, T, 256))


@pytest.fixture
def reciter() -> Callable[[str], Reciter]:
    return lambda text: Reciter(text.encode())
