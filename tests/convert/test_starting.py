"""A training that starts from a trained model, in the same form or with products merged."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.convert.model import starting_point
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.training.config import resolve
from mlx_attn.training.trainer import Trainer

SIZES: dict[str, Any] = {"n_layers": 2, "n_heads": 2, "emb_dim": 8, "context_length": 8}
MERGES = [{}, {"output": "merged"}, {"score": "merged", "output": "merged"}]


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat, and the dog sat on the cat. " * 20)
    return prepare(str(text), "char", directory=tmp_path / "data")


def trained(config: GPTConfig) -> GPT:
    """A model that has opinions: every weight, biases included, is random."""
    mx.random.seed(1)
    model = GPT(config)
    model.apply(lambda weight: weight + 0.3 * mx.random.normal(weight.shape))
    model.eval()
    return model


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("merges", MERGES, ids=str)
def test_the_loss_before_the_first_step_is_that_of_the_start(corpus, merges, qkv_bias):
    recipe = {"preset": "macbook", "steps": 1, **SIZES, "bias": True, "qkv_bias": qkv_bias}
    separate, wanted = (Trainer(resolve(recipe, form), corpus) for form in ({}, merges))
    source = trained(separate.model.config)
    separate.start_from(source)
    wanted.start_from(starting_point(source, wanted.model.config))
    losses = [training.evaluate()[0].val_loss for training in (separate, wanted)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    first = [training.launch_step()[0].item() for training in (separate, wanted)]
    assert first[1] == pytest.approx(first[0], abs=1e-6)


@pytest.mark.parametrize(
    ("have", "wanted", "message"),
    [
        ({}, {"score": "no_query"}, "score='separate' are no start for score='no_query'"),
        ({}, {"output": "none"}, "output='linear' are no start for output='none'"),
        ({"position": "rope"}, {"score": "merged"}, "position=rope turns"),
    ],
)
def test_what_cannot_be_taken_over_exactly_is_refused_with_the_reason(have, wanted, message):
    source = GPTConfig(**SIZES, **have)
    with pytest.raises(ConfigError, match=message):
        starting_point(trained(source), replace(source, **wanted))
