from collections.abc import Callable

import mlx.core as mx
import pytest

from mlx_attn.attention.catalog import find_variant
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from tests.runs import SIZES

SETTINGS = {**SIZES, "vocab_size": 256, "context_length": 12, "n_layers": 2}


@pytest.fixture
def gpt() -> Callable[..., GPT]:
    """Makes a tiny GPT of any variant whose weights are large enough to have opinions."""

    def make(variant: str = "standard", **settings) -> GPT:
        mx.random.seed(7)
        model = GPT(GPTConfig(**{**SETTINGS, **find_variant(variant).settings, **settings}))
        model.tok_emb.weight = mx.random.normal(model.tok_emb.weight.shape)
        if "out_head" in model:
            model.out_head.weight = mx.random.normal(model.out_head.weight.shape)
        model.eval()
        return model

    return make
