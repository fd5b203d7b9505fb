from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.probe.heads import Probe, probe


@pytest.fixture(scope="session")
def found() -> Callable[..., Probe]:
    """Probes a small random model with opinions that reads random tokens."""

    def make(texts: int = 1, tokens: int = 12, **choices: Any) -> Probe:
        sizes: dict[str, Any] = {"context_length": 16, "emb_dim": 12, "n_heads": 3, "n_layers": 2}
        recipe: dict[str, Any] = {"vocab_size": 20, "start": "book"}
        mx.random.seed(2)
        model = GPT(GPTConfig(**(recipe | sizes | choices)))
        model.apply(lambda weight: 2 * weight)
        model.eval()
        return probe(model, np.random.default_rng(0).integers(0, 20, (texts, tokens)))

    return make
