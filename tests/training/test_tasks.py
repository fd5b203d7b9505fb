"""A task is trained and validated on its scored tokens alone."""

import math

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.objective import objective_for, window_losses
from mlx_attn.training.settings import resolve
from mlx_attn.training.trainer import Trainer

SMALL = {"emb_dim": 16, "n_heads": 2, "n_layers": 1, "batch_size": 4, "steps": 3, "warmup": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return prepare("copy", directory=tmp_path_factory.mktemp("data"))


def trainer(corpus: Corpus, **settings) -> Trainer:
    return Trainer(resolve({"data": "copy"}, SMALL, settings), corpus)


def test_the_loss_is_the_mean_over_scored_tokens(corpus):
    made = trainer(corpus)
    starts = made.order.starts(0, 0)
    places = np.array(starts)[:, None] + np.arange(66)
    losses = window_losses(made.model, mx.array(corpus.train.tokens[places]))
    assert corpus.train.scored is not None
    scored = corpus.train.scored[places[:, 1:]]
    expected = (np.array(losses) * scored).sum() / scored.sum()
    assert float(made.launch_step()[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"compile": "on"}, {"token_memory": 1}])
def test_however_a_step_is_taken_its_loss_is_the_same(corpus, settings):
    first, second = trainer(corpus, batch_size=8), trainer(corpus, **{"batch_size": 8} | settings)
    starts = mx.array([65 * i for i in (0, 5, 7, 8, 11, 12, 70, 3)])
    losses = [float(made.step(starts)[0]) for made in (first, second)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_windows_of_a_task_start_with_its_documents(corpus):
    starts = trainer(corpus).order.starts(0, 0)
    assert set((np.array(starts) % 65).tolist()) == {0}


def test_a_context_that_holds_no_document_is_refused(corpus):
    with pytest.raises(ConfigError, match=r"too short .* 65 tokens: use --context-length 65"):
        trainer(corpus, context_length=64)


def test_unscored_tokens_change_nothing(corpus):
    made = trainer(corpus)
    objective = objective_for(corpus.train, 65, 256)
    windows, scored = objective.gather(objective.fetch(mx.array([0])))
    swapped = mx.concatenate([windows[:, :-1], mx.array([[7]], windows.dtype)], axis=1)
    losses = [float(objective.loss(made.model, (w, scored))) for w in (windows, swapped)]
    assert losses[0] == losses[1]


def test_validation_counts_scored_tokens_in_nats_and_answers_as_right_or_wrong(corpus):
    result = Evaluator(corpus.val, 65)(trainer(corpus).model)
    assert result.tokens == 500 * 63
    assert result.bits_per_byte is None
    assert result.above_floor == pytest.approx(result.loss - 31 * math.log(32) / 63)
    assert sum(result.abilities.values()) == pytest.approx(result.above_floor)
    assert list(result.abilities) == ["context", "answer"]
    assert result.accuracy is not None
    assert 0 <= result.accuracy < 0.1
