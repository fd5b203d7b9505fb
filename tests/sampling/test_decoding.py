"""A step is a graph: of any length, batch and settings it writes what full forward passes would."""

from contextlib import nullcontext
from itertools import islice
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.errors import RunError
from mlx_attn.machine import graphs
from mlx_attn.machine.layers import TokenLinear
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling import decoding
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, TokenStep, decode
from mlx_attn.sampling.samplers import Sampler
from tests.sampling.conftest import by_full_passes, gpt

PROMPT = [3, 1, 4, 1, 5]
VARIANTS = ["standard", "merged", "forgetting", "sliding-window"]
POSITIONS = ["learned", "alibi", "rope", "none"]


def texts(model, n: int, prompt=PROMPT, count: int = 1, step=None, **config: Any) -> Any:
    """The tokens of each text, side by side: [count, n]."""
    sampler = Sampler(SamplerConfig(**config), count)
    state = DecodingState(step or TokenStep(model))
    return np.array([*islice(decode(state, prompt, sampler), n)]).T


@pytest.mark.parametrize(
    "settings",
    [
        *({"variant": name, "context_length": 40} for name in VARIANTS),
        *({"variant": name, "position": how} for name in VARIANTS[:2] for how in POSITIONS),
    ],
    ids=str,
)
def test_sampled_text_is_that_of_full_passes_with_the_same_seed(settings):
    """Within the context, and beyond one of 12 tokens."""
    model = gpt(**settings)
    found = texts(model, 30, temp=1.5, seed=11)[0].tolist()
    assert found == by_full_passes(model, PROMPT, 30, temp=1.5, seed=11)


@pytest.mark.parametrize(
    "settings",
    [{}, {"top_k": 9, "min_p": 0.01}, {"top_p": 0.9, "repetition_penalty": 1.3}],
    ids=str,
)
def test_each_text_of_a_batch_is_the_one_of_its_seed_alone(settings):
    model = gpt()
    batch = texts(model, 20, count=3, temp=2.0, seed=7, **settings)  # beyond the context of 12
    alone = [texts(model, 20, temp=2.0, seed=7 + k, **settings)[0] for k in range(3)]
    assert batch.tolist() == np.array(alone).tolist()
    assert len({tuple(text) for text in batch.tolist()}) == 3


@pytest.mark.parametrize("variant", ["standard", "local-global", "shared-self-mask"])
def test_caches_that_grow_on_the_way_change_nothing(variant, monkeypatch):
    model = gpt(variant, context_length=30)
    whole = texts(model, 24, temp=0.0)
    monkeypatch.setattr(decoding, "SHORTEST", 4)
    assert texts(model, 24, temp=0.0).tolist() == whole.tolist()


@pytest.mark.parametrize("variant", ["standard", "sliding-window", "mla"])
def test_a_prompt_read_in_chunks_is_the_whole_prompt(variant, monkeypatch):
    model, prompt = gpt(variant, context_length=40), mx.arange(29)[None]
    whole = DecodingState(TokenStep(model)).read(prompt)
    monkeypatch.setattr(decoding, "CHUNK", 4)
    assert mx.allclose(DecodingState(TokenStep(model)).read(prompt), whole, atol=1e-4)


def test_a_shared_step_writes_with_the_weights_that_the_model_has_now():
    model = gpt()
    step = TokenStep(model)
    before = texts(model, 6, step=step, temp=0.0)
    model.out_head.weight = -model.out_head.weight
    after = texts(model, 6, step=step, temp=0.0)
    assert after.tolist() == texts(model, 6, temp=0.0).tolist() != before.tolist()
    assert len(step._graphs) == 1
    model.set_dtype(mx.bfloat16)
    assert texts(model, 6, step=step, temp=0.0).tolist() == texts(model, 6, temp=0.0).tolist()


def test_a_shared_step_draws_with_the_settings_of_each_sampler():
    model, settings = gpt(), {"temp": 1.5, "seed": 3}
    step = TokenStep(model)
    for top_k in (0, 2):
        shared = texts(model, 6, step=step, top_k=top_k, **settings)
        assert shared.tolist() == texts(model, 6, top_k=top_k, **settings).tolist()


@pytest.mark.parametrize("path", ["on_processor", "nvidia"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("out", [12, 3 * 1024, 4099])
@pytest.mark.parametrize("shape", [(1, 1, 48), (2, 3, 1, 48)], ids=str)
def test_a_layer_for_one_token_computes_what_its_own_does(path, out, bias, shape, request):
    request.getfixturevalue(path)
    layer, x = nn.Linear(48, out, bias=bias), mx.random.normal(shape)
    assert mx.allclose(TokenLinear(layer)(x), layer(x), atol=1e-5)
    assert mx.array_equal(TokenLinear(layer).weight, layer.weight)


def test_the_layers_for_one_token_copy_no_weight():
    model = gpt(emb_dim=256, tied_head=True)
    mx.eval(model.parameters())
    before = mx.get_active_memory()
    weights = TokenStep(model).weights(texts=1)
    assert {"trf_blocks.0.ff.layers.0.columns", "tok_emb.head.columns"} <= {*weights}
    assert mx.get_active_memory() - before < 4096


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_leaves_the_model_as_it_was(fails, monkeypatch):
    model = gpt()
    layers, weights = [type(layer) for layer in model.modules()], named_arrays(model)
    state = DecodingState(TokenStep(model))
    state.read(mx.array([PROMPT]))
    if fails:
        monkeypatch.setattr(GPT, "head", lambda self, x: [][0])
    with pytest.raises(IndexError) if fails else nullcontext():
        state.following(mx.array([[3]], mx.uint32), Sampler(SamplerConfig(temp=0.0)))
    assert [type(layer) for layer in model.modules()] == layers
    assert all(named_arrays(model)[name] is array for name, array in weights.items())


@pytest.mark.slow
def test_a_hot_step_is_compiled_and_writes_the_same(monkeypatch):
    model = gpt(context_length=40)
    cold = texts(model, 30, temp=1.5, seed=3)
    monkeypatch.setattr(graphs, "HOT", 10)
    assert texts(model, 30, temp=1.5, seed=3).tolist() == cold.tolist()


def test_where_compiling_is_slow_only_a_hot_step_is_compiled(nvidia, monkeypatch):
    hot: list[Any] = []
    monkeypatch.setattr(graphs, "compiled", lambda function: hot.append(function) or function)
    cold = texts(gpt(context_length=40), 20, temp=0.0)
    assert not hot
    monkeypatch.setattr(graphs, "HOT", 10)
    assert texts(gpt(context_length=40), 20, temp=0.0).tolist() == cold.tolist()
    assert len(hot) == 1


@pytest.mark.parametrize(("length", "context"), [(11, 12), (12, 12), (13, 12), (40, 12), (5, 2)])
def test_a_prompt_of_any_length_is_read_by_the_same_rule(length, context):
    model, prompt = gpt(context_length=context), [t % 256 for t in range(0, 7 * length, 7)]
    assert texts(model, 20, prompt, temp=0.0)[0].tolist() == by_full_passes(model, prompt, 20)


def test_a_diverged_model_is_an_error_and_not_noise():
    model = gpt()
    model.out_head.weight = model.out_head.weight * mx.nan
    with pytest.raises(RunError, match="diverged"):
        texts(model, 1, temp=0.0)
