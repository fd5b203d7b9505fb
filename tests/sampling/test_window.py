from itertools import islice

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, decode
from mlx_attn.sampling.samplers import Sampler

POSITIONS = ("learned", "alibi", "rope", "none")
PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplerConfig(temp=0.0)


def decoded(model, prompt, n, config=GREEDY) -> list[int]:
    return [row[0] for row in islice(decode(DecodingState(model), prompt, Sampler(config)), n)]


def recomputed(model, prompt, n) -> list[int]:
    """The likeliest tokens by whole forward passes over what the window's rule leaves."""
    context = model.config.context_length
    text, start = list(prompt), 0
    for _ in range(n):
        if len(text) - start > context:
            start = len(text) - context // 2
        logits = model(mx.array([text[start:]]))[0, -1]
        text.append(int(np.array(mx.argmax(logits))))
    return text[len(prompt) :]


@pytest.mark.parametrize("variant", ["standard", "merged"])
@pytest.mark.parametrize("position", POSITIONS)
def test_decoding_with_caches_equals_recomputing_for_every_position(gpt, variant, position):
    try:
        model = gpt(variant, position=position)
    except ConfigError:
        pytest.skip("this combination does not exist")
    assert decoded(model, PROMPT, 20) == recomputed(model, PROMPT, 20)


@pytest.mark.parametrize("length", [11, 12, 13, 40])
def test_a_prompt_of_any_length_is_read_by_the_same_rule(gpt, length):
    model, prompt = gpt(), [t % 256 for t in range(0, 7 * length, 7)]
    assert decoded(model, prompt, 20) == recomputed(model, prompt, 20)


def test_a_long_text_is_read_as_one_that_starts_at_its_last_half_context(gpt):
    model, text = gpt(), mx.arange(13, dtype=mx.uint32)
    long, short = DecodingState(model), DecodingState(model)
    logits = [long.read(token[None, None]) for token in text]
    assert long.length == 6
    np.testing.assert_allclose(logits[-1], short.read(text[None, -6:]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context_length", [1, 2, 3])
def test_the_smallest_contexts_go_on_too(gpt, context_length):
    assert len(decoded(gpt(context_length=context_length), PROMPT, 9)) == 9


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(gpt):
    model = gpt()
    texts = [decoded(model, PROMPT, 40, SamplerConfig(temp=2.0, seed=s)) for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_diverged_model_is_an_error_and_not_noise(gpt):
    model = gpt()
    model.out_head.weight = model.out_head.weight * mx.nan
    with pytest.raises(RunError, match="diverged"):
        decoded(model, PROMPT, 1)
