"""MLX's own tools work on a model of every form: quantization, LoRA layers, export."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.machine.graphs import without_gradients
from mlx_attn.model.config import config_from
from mlx_attn.model.gpt import GPT

TOKENS = mx.array(np.arange(32)[None] % 11)


class Wrapped(nn.Module):
    """A linear layer plus a low-rank term, like a LoRA layer."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear
        self.a, self.b = mx.zeros((linear.weight.shape[1], 2)), mx.zeros((2, len(linear.weight)))

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear(x) + x @ self.a @ self.b


@pytest.fixture(params=VARIANTS)
def model(request) -> GPT:
    sizes = {"vocab_size": 64, "emb_dim": 64, "n_heads": 2, "n_layers": 2, "context_length": 32}
    model = GPT(config_from({**sizes, "qkv_bias": True, **VARIANTS[request.param].settings}))
    model.eval()
    return model


def decoded(model: GPT) -> mx.array:
    caches = model.new_caches()
    return mx.concatenate([model(part, caches) for part in mx.split(TOKENS, [30, 31], axis=1)], 1)


def off(y: mx.array, wanted: mx.array) -> float:
    return float(mx.abs(y - wanted).max() / mx.abs(wanted).max())


def test_a_quantized_model_computes_and_decodes_nearly_the_same(model):
    exact = model(TOKENS)
    nn.quantize(model, group_size=32, bits=8)
    assert 0 < off(model(TOKENS), exact) < 0.05
    assert off(decoded(model), model(TOKENS)) < 1e-4


def test_linear_layers_can_be_wrapped(model):
    exact = model(TOKENS)
    for block in model.trf_blocks:
        layers = {name: part for name, part in block.att.items() if type(part) is nn.Linear}
        block.att.update_modules({name: Wrapped(part) for name, part in layers.items()})
    assert off(model(TOKENS), exact) < 1e-5
    assert off(decoded(model), exact) < 1e-4


def test_an_exported_model_computes_the_same(model, tmp_path):
    file = str(tmp_path / "model.mlxfn")
    mx.export_function(file, without_gradients(model), TOKENS)
    read: Any = mx.import_function(file)
    assert off(read(TOKENS)[0], model(TOKENS)) < 1e-5
