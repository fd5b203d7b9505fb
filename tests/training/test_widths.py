"""The coordinate check of a parameterisation: how far a few steps move activations, by the width.

Where the changes are as large at every width, one learning rate serves all of them (Yang and
others, Tensor Programs V, arXiv:2203.03466, appendix D).
"""

from functools import cache

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.attention.config import find_variant
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.batches import window_losses
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer

SAME = 2.6  # at the wider one, eight times as wide, a change is at most this often as large


@cache
def changes(width: int, variant: str, optimizer: str, base_width: int) -> np.ndarray:
    """Root mean square of what three steps change of the residual stream and of the logits."""
    maps = find_variant(variant).settings
    sizes = {"vocab_size": 32, "context_length": 16, "n_layers": 2, "n_heads": 4, "emb_dim": width}
    model = GPT(GPTConfig(**sizes, bias=False, norm="rmsnorm", start="book", **maps), seed=0)
    recipe = {"lr": 2e-3, "muon_lr": 2e-2, "optimizer": optimizer, "steps": 3}
    made = GroupedOptimizer(model, TrainConfig(**recipe, base_width=base_width), 4, width)
    made.schedule(1.0)
    windows = mx.array(np.random.default_rng(0).integers(32, size=(8, 17)))
    loss = nn.value_and_grad(model, lambda tokens: window_losses(model, tokens).mean())

    def activations() -> list[np.ndarray]:
        stream = model.features(windows[:, :-1])
        return [np.array(stream), np.array(model.head(stream))]

    before = activations()
    for _ in range(3):
        made.update(model, loss(windows)[1])
        mx.eval(model.parameters())
    pairs = zip(activations(), before, strict=True)
    return np.array([np.sqrt(np.mean((after - start) ** 2)) for after, start in pairs])


@pytest.mark.parametrize("variant", ["standard", "merged"])
def test_with_a_base_width_a_step_changes_as_much_at_every_width(variant):
    for optimizer in ("adamw", "muon"):
        growth = changes(256, variant, optimizer, 64) / changes(32, variant, optimizer, 64)
        assert (growth > 1 / SAME).all()
        assert (growth < SAME).all()
    assert (changes(256, variant, "adamw", 0) > 3 * changes(32, variant, "adamw", 0)).all()
