"""Replicas are the trainings of their own that they stand for."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention import attention as memory
from mlx_attn.attention.attention import fastest_attention
from mlx_attn.errors import ConfigError
from mlx_attn.run_directory import open_run
from mlx_attn.training.config import Settings
from mlx_attn.training.events import Ended, Evaluated, Failed, Stepped
from mlx_attn.training.loop import train
from mlx_attn.training.replicas import (
    Replica,
    Vmapped,
    is_faster,
    replicas_of,
    sequential,
    step_times,
    train_replicas,
    with_seeds,
)

STEPS, SEEDS = 15, 3
CLOSE = 1e-5
EVERY_STEP = {"steps": STEPS, "log_every": 1, "clip": 0.5}

Losses = dict[int, list[float]]


@pytest.fixture
def settings(trainer) -> Callable[..., list[Settings]]:
    """Settings of three seeds."""
    return lambda **changes: with_seeds(trainer(**{**EVERY_STEP, **changes}).settings, SEEDS)


def events(replicas: Sequence[Replica], launch=None, stop_at: int | None = None) -> dict[int, list]:
    """The reports of every seed; somebody stops them after a step."""
    found: dict[int, list] = {replica.config.seed: [] for replica in replicas}

    def stop() -> bool:
        return any(replica.progress.step == stop_at for replica in replicas)

    for replica, report in train_replicas(replicas, launch or Vmapped(), stop):
        found[replica.config.seed].append(report)
    return found


def losses(found: dict[int, list]) -> Losses:
    return {seed: [r.loss for r in all if isinstance(r, Stepped)] for seed, all in found.items()}


def recipe(settings: Settings) -> dict:
    return {**settings.model, **settings.training.as_dict()}


def losses_apart(trainer, settings: Sequence[Settings]) -> Losses:
    """The losses of trainings of their own."""
    alone = {each.training.seed: train(trainer(**recipe(each))) for each in settings}
    return losses({seed: list(reports) for seed, reports in alone.items()})


def assert_close(one: Losses, other: Losses) -> None:
    assert one.keys() == other.keys()
    for seed, expected in other.items():
        assert len(expected) == STEPS
        assert np.abs(np.array(one[seed]) - expected).max() < CLOSE, seed


FORMS = [
    {"variant": "standard", "optimizer": "muon"},
    {"variant": "no-out-proj"},
    {"variant": "merged", "position": "alibi"},
    {"position": "rope", "optimizer": "muon"},
    {"block": "book"},
]
"""The first two are tried in the ordinary suite."""


@pytest.mark.parametrize(
    "form",
    [*FORMS[:2], *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[2:])],
    ids=lambda form: "-".join(form.values()),
)
def test_losses_are_those_of_trainings_of_their_own(trainer, corpus, settings, form):
    chosen = settings(**form)
    assert_close(losses(events(replicas_of(chosen, corpus))), losses_apart(trainer, chosen))


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": "epochs"},
        pytest.param({"accumulate": 2}, marks=pytest.mark.slow),
        pytest.param({"accumulate": 2, "compile": "on"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_so_they_are_with_micro_batches_compiled_or_by_epochs(trainer, corpus, settings, changes):
    chosen = settings(**changes, variant="merged", optimizer="muon")
    assert_close(losses(events(replicas_of(chosen, corpus))), losses_apart(trainer, chosen))


def test_of_a_task_the_scored_tokens_count(trainer, corpus, settings):
    scored = np.arange(len(corpus.train.tokens)) % 3 == 0
    train_split = replace(corpus.train, scored=scored.astype(np.uint8))
    task = replace(corpus, train=train_split)
    chosen = settings()
    together, apart = (losses(events(replicas_of(chosen, task), how)) for how in (None, sequential))
    assert_close(together, apart)
    assert together != losses(events(replicas_of(chosen, corpus)))


def test_learning_rates_may_differ(trainer, corpus):
    rates = {0: 3e-3, 1: 1e-3, 2: 1e-4}
    chosen = [trainer(**EVERY_STEP, seed=seed, lr=lr).settings for seed, lr in rates.items()]
    assert_close(losses(events(replicas_of(chosen, corpus))), losses_apart(trainer, chosen))


def test_in_turn_the_losses_are_the_same_bits(trainer, corpus, settings):
    chosen = settings()
    assert losses(events(replicas_of(chosen, corpus), sequential)) == losses_apart(trainer, chosen)


def test_validations_are_those_of_trainings_of_their_own(trainer, corpus, settings):
    chosen = settings(eval_every=5)
    for seed, reports in events(replicas_of(chosen, corpus)).items():
        alone = train(trainer(**EVERY_STEP, eval_every=5, seed=seed))
        expected = [(r.step, r.evaluation.val_loss) for r in alone if isinstance(r, Evaluated)]
        found = [(r.step, r.evaluation.val_loss) for r in reports if isinstance(r, Evaluated)]
        assert [step for step, _ in found] == [5, 10, 15]
        assert np.allclose(found, expected, atol=CLOSE)


def with_runs(trainer, settings: Sequence[Settings], path, corpus) -> list[Replica]:
    replicas = replicas_of(settings, corpus)
    for replica in replicas:
        place = path / str(replica.config.seed)
        replica.run = trainer(run=place, **recipe(replica.settings)).run
    return replicas


def resumed(settings: Sequence[Settings], path, corpus) -> list[Replica]:
    replicas = replicas_of(settings, corpus)
    for replica in replicas:
        replica.resume(open_run(path / str(replica.config.seed)))
    return replicas


def weights(replica: Replica) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in named_arrays(replica.model).items()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_interrupted_and_resumed_they_are_the_same_bits(
    trainer, corpus, settings, tmp_path, optimizer
):
    chosen = settings(optimizer=optimizer, eval_every=4, steps=9)
    straight = replicas_of(chosen, corpus)
    expected = losses(events(straight))
    first = losses(events(with_runs(trainer, chosen, tmp_path, corpus), stop_at=5))
    again = resumed(chosen, tmp_path, corpus)
    second = losses(events(again))
    assert {seed: first[seed] + second[seed] for seed in expected} == expected
    for one, other in zip(straight, again, strict=True):
        for name, array in weights(one).items():
            assert np.array_equal(array, weights(other)[name]), name


def test_each_run_goes_on_alone_as_an_ordinary_one(trainer, corpus, settings, tmp_path):
    chosen = settings(steps=9)
    expected = losses(events(replicas_of(chosen, corpus)))[1]
    events(with_runs(trainer, chosen, tmp_path, corpus), stop_at=5)
    alone = trainer(**recipe(chosen[1]))
    alone.resume(open_run(tmp_path / "1"))
    found = [report.loss for report in train(alone) if isinstance(report, Stepped)]
    assert np.allclose(found, expected[5:], atol=CLOSE)


def test_those_saved_earlier_catch_up(trainer, corpus, settings, tmp_path):
    chosen = settings(steps=9)
    expected = losses(events(replicas_of(chosen, corpus)))
    events(with_runs(trainer, chosen, tmp_path, corpus), stop_at=3)
    ahead = resumed(chosen, tmp_path, corpus)
    events(ahead[:1], stop_at=6)
    found = losses(events(resumed(chosen, tmp_path, corpus)))
    assert [len(all) for all in found.values()] == [3, 6, 6]
    for seed, all in expected.items():
        assert np.allclose(found[seed], all[-len(found[seed]) :], atol=CLOSE)


def test_one_that_diverges_stops_and_the_others_go_on(trainer, corpus):
    rates = {0: 1e-3, 1: 1e30, 2: 1e-3}
    chosen = [trainer(**EVERY_STEP, seed=seed, lr=lr).settings for seed, lr in rates.items()]
    found = events(replicas_of(chosen, corpus))
    assert [type(all[-1]) for all in found.values()] == [Ended, Failed, Ended]
    assert "learning rate" in found[1][-1].message
    expected = losses_apart(trainer, [chosen[0], chosen[2]])
    assert_close(losses({0: found[0], 2: found[2]}), expected)


def test_one_that_no_longer_learns_stops_and_the_others_go_on(trainer, corpus):
    rates = {0: 1e-2, 1: 1e-30}
    kept = {"steps": 30, "patience": 1, "eval_every": 5, "warmup": 0, "schedule": "constant"}
    chosen = [trainer(**{**EVERY_STEP, **kept}, seed=s, lr=lr).settings for s, lr in rates.items()]
    ends = {seed: all[-1] for seed, all in events(replicas_of(chosen, corpus)).items()}
    assert (ends[0].reason, ends[0].steps) == ("done", 30)
    assert (ends[1].reason, ends[1].steps < 30) == ("patience", True)


def test_no_fused_kernel_is_mapped_and_afterwards_all_may_serve(
    corpus, settings, gpu_path, monkeypatch
):
    def refuse(*arguments, **options):
        raise AssertionError("a fused kernel under mx.vmap")

    monkeypatch.setattr(memory, "fused_attention", refuse)
    replicas = replicas_of(settings(compile="off"), corpus)
    launched = Vmapped()(replicas)
    assert all(np.isfinite(loss.item()) for loss, _ in launched)
    assert replicas[0].model.trf_blocks[0].att.attend is fastest_attention


def test_the_models_are_usable_between_steps(corpus, settings):
    replicas = replicas_of(settings(), corpus)
    launch = Vmapped()
    launch(replicas)
    before = weights(replicas[0])
    assert all(np.isfinite(array).all() for array in before.values())
    for replica in replicas:
        replica.sync()
    logits = [np.array(r.model(mx.array([[1, 2, 3]]))) for r in replicas]
    assert np.abs(logits[0] - logits[1]).max() > 0
    assert any((before[name] != array).any() for name, array in weights(replicas[0]).items())


def test_they_must_have_one_form(trainer, corpus):
    chosen = [trainer(n_layers=1).settings, trainer(n_layers=2).settings]
    with pytest.raises(
        ConfigError, match="one form: n_layers is 1 and 2; what may differ: init_seed"
    ):
        replicas_of(chosen, corpus)


@pytest.mark.parametrize("changes", [{"drop_rate": 0.1}, {"minutes": 1.0}], ids=str)
def test_what_they_would_share_is_refused(corpus, settings, changes):
    with pytest.raises(ConfigError, match="share"):
        replicas_of(settings(**changes), corpus)


def test_the_trial_times_both_ways(corpus, settings):
    assert all(0 < seconds < 100 for seconds in step_times(settings(), corpus, rounds=1))


def test_one_alone_gains_nothing(corpus, settings):
    assert not is_faster(settings()[:1], corpus)
