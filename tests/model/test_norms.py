"""Norms of a few tokens are compiled, and are MLX's own numbers."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlx_attn.bench.speed import operations
from mlx_attn.machine import graphs
from mlx_attn.machine.device import on_linux_cpu
from mlx_attn.model.gpt import LayerNorm, RMSNorm

PAIRS = [(LayerNorm, nn.LayerNorm), (RMSNorm, nn.RMSNorm)]


def started(norm: nn.Module) -> nn.Module:
    """A norm with weights of its own, in evaluation mode."""
    weights = {name: mx.random.normal(a.shape, key=mx.random.key(3)) for name, a in norm.items()}
    norm.update(weights)
    norm.eval()
    return norm


@pytest.mark.parametrize(("ours", "own"), PAIRS)
@pytest.mark.parametrize("tokens", [1, 300])
def test_a_norm_is_mlx_s(ours, own, tokens):
    x = 3 * mx.random.normal((1, tokens, 24), key=mx.random.key(1)) + 1
    one, two = started(ours(24, 1e-5)), started(own(24, 1e-5))
    assert mx.allclose(one(x), two(x), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not on_linux_cpu(), reason="only this back end needs it")
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_a_single_token_takes_fewer_operations(norm, monkeypatch):
    layer, x = started(norm(16, 1e-5)), mx.ones((1, 1, 16))
    mx.eval(x, layer.parameters())
    monkeypatch.setattr(graphs, "has_compiler", lambda: True)
    compiled = operations(layer(x)).total()
    monkeypatch.setattr(graphs, "has_compiler", lambda: False)
    assert compiled < operations(layer(x)).total()
