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
from mlx_attn.attention.layer import attention_scores
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.batches import window_losses
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer

WIDTHS = (32, 256)
STEPS, T = 3, 16
SAME = 2.6  # at the wider one, eight times as wide, a change is at most this often as large
NAMES = ("stream", "scores", "logits")


def activations(model: GPT, tokens: mx.array) -> dict[str, np.ndarray]:
    """The residual stream after all blocks, the last block's scores, and the logits."""
    x = model.embed(tokens)
    for block in model.trf_blocks[:-1]:
        x = block(x)
    last = model.trf_blocks[-1]
    q, k = last.att.queries_and_keys(last.norm1(x))
    stream = last(x)
    found = {
        "stream": stream,
        "scores": attention_scores(q, k, last.att.config.scale),
        "logits": model.head(stream),
    }
    return {name: np.array(array) for name, array in found.items()}


@cache
def changes(width: int, variant: str, optimizer: str, based: bool) -> dict[str, float]:
    """Root mean square of what a few steps change of every activation."""
    maps = find_variant(variant).settings
    sizes = {"vocab_size": 32, "context_length": T, "n_layers": 2, "n_heads": 4, "emb_dim": width}
    model = GPT(GPTConfig(**sizes, bias=False, norm="rmsnorm", start="book", **maps), seed=0)
    recipe = {"lr": 2e-3, "muon_lr": 2e-2, "optimizer": optimizer, "steps": STEPS}
    config = TrainConfig(**recipe, base_width=64 if based else 0)
    made = GroupedOptimizer(model, config, 4, width)
    made.schedule(1.0)
    windows = mx.array(np.random.default_rng(0).integers(32, size=(8, T + 1)))
    loss = nn.value_and_grad(model, lambda tokens: window_losses(model, tokens).mean())
    before = activations(model, windows[:, :-1])
    for _ in range(STEPS):
        made.update(model, loss(windows)[1])
        mx.eval(model.parameters())
    after = activations(model, windows[:, :-1])
    return {n: float(np.sqrt(np.mean((after[n] - before[n]) ** 2))) for n in before}


def growth(*how) -> dict[str, float]:
    """The wider model's changes as multiples of the narrower one's."""
    narrow, wide = (changes(width, *how) for width in WIDTHS)
    return {name: wide[name] / narrow[name] for name in NAMES}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("variant", ["standard", "merged"])
def test_with_a_base_width_a_step_changes_as_much_at_every_width(variant, optimizer):
    assert all(1 / SAME < found < SAME for found in growth(variant, optimizer, True).values())


@pytest.mark.parametrize("variant", ["standard", "merged"])
def test_without_one_a_step_of_adamw_changes_the_more_the_wider_the_model_is(variant):
    assert all(found > 3 for found in growth(variant, "adamw", False).values())
