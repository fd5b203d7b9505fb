"""Trainings done together end like those that are done apart."""

from dataclasses import asdict, replace
from itertools import chain

import pytest

from mlx_attn.compare.comparison import ComparisonRun
from mlx_attn.compare.result import TrialResult
from mlx_attn.compare.runner import (
    Crew,
    Diverged,
    Store,
    of_one_form,
    share_of,
    train_together,
    train_trial,
)
from mlx_attn.compare.tuning import TunedArm, trial_for

CLOSE = 1e-5


@pytest.fixture
def cells(protocol, crew):
    """Two seeds with a learning rate each."""
    plan = ComparisonRun(protocol(), crew, {}).protocol
    choices = [TunedArm(plan.arms[0], {}, scale) for scale in (1.0, 2.0)]
    return [trial_for(plan, choice, seed) for seed, choice in enumerate(choices)]


def course(training):
    """What a training came to, without what depends on the machine."""
    assert isinstance(training, TrialResult)
    points = [(point.step, point.tokens, point.val_loss) for point in training.curve]
    ranks = [tuple(asdict(ranks).values()) for ranks in training.ranks]
    facts = training.seed, training.lr_scale, training.steps, training.tokens, training.val_loss
    return [*facts, *chain(*points), *chain(*ranks)]


def test_replicas_in_one_process_end_like_separate_trainings(cells, tmp_path):
    outcomes = dict(Crew(Store(tmp_path / "replicas"), 1, of_one_form)(cells))
    for cell in cells:
        assert course(outcomes[cell]) == pytest.approx(course(train_trial(cell)), abs=CLOSE)


def test_one_that_diverges_leaves_the_others(cells):
    wild = replace(cells[1], settings={**cells[1].settings, "lr": 1e30})
    still = [replace(c, settings={**c.settings, "clip": 0.0}) for c in (cells[0], wild)]
    outcomes = dict(train_together(still))
    assert isinstance(outcomes[still[0]], TrialResult)
    assert isinstance(outcomes[still[1]], Diverged)


def test_whoever_is_told_to_stop_has_no_result(cells):
    assert list(train_together(cells, lambda: True)) == []


def test_time_and_memory_are_shared_and_speed_is_that_of_one_alone(cells):
    training = train_trial(cells[0])
    assert training
    one = share_of(replace(training, seconds=6.0, peak_memory=3000), 3, tok_s=50.0)
    assert (one.seconds, one.peak_memory, one.tok_s) == (2.0, 1000, 50.0)
    assert one.curve[-1].seconds == one.curve[-1].tokens / 50.0
