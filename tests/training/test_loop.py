import itertools
import json
import math
from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.errors import RunError
from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Ended, Evaluated, Event, Started, Stepped, as_record
from mlx_attn.training.loop import train


def of(kind: type[Event], reports: Iterable[Event]) -> list[Any]:
    return [report for report in reports if isinstance(report, kind)]


def end_of(reports: Iterable[Event]) -> Any:
    *_, end = reports
    assert isinstance(end, Ended)
    return end


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves by one second whenever somebody looks at it."""
    seconds = itertools.count()
    monkeypatch.setattr("mlx_attn.training.loop.time.perf_counter", lambda: float(next(seconds)))


def test_a_training_reports_its_start_its_steps_its_validations_and_its_end(trainer):
    reports = list(train(trainer(steps=12, log_every=5, eval_every=4)))
    assert mx.get_cache_memory() < end_of(reports).peak_memory / 4  # it was given back
    assert isinstance(reports[0], Started)
    assert [report.step for report in of(Stepped, reports)] == [4, 5, 8, 10, 12]
    assert [report.step for report in of(Evaluated, reports)] == [4, 8, 12]
    assert end_of(reports).reason == "done"
    json.dumps([as_record(report) for report in reports], allow_nan=False)


def test_the_reported_loss_is_the_mean_since_the_last_report(trainer):
    made, every = trainer(steps=6, log_every=1, drop_rate=0.5), []
    for report in train(made):
        every += [report.loss] if isinstance(report, Stepped) else []
        made.model.eval()  # a reader's, which must not end the dropout
    assert made.progress.first_loss == every[0]
    settings = {"steps": 6, "log_every": 3, "drop_rate": 0.5}
    thirds = [report.loss for report in of(Stepped, train(trainer(**settings)))]
    assert thirds == pytest.approx([sum(every[:3]) / 3, sum(every[3:]) / 3])


def test_the_reported_rate_is_the_one_that_moved_the_weights(trainer):
    made = trainer(steps=4, log_every=1, warmup=3, lr=0.4, schedule="constant")
    group = made.optimizer.groups["matrices"]
    rates = [
        (report.lr, float(group.state["learning_rate"]))
        for report in train(made)
        if isinstance(report, Stepped)
    ]
    assert np.allclose(rates, [[0.1] * 2, [0.2] * 2, [0.3] * 2, [0.4] * 2])


def test_the_best_validation_is_told_at_the_end_and_its_weights_are_kept(trainer, tmp_path):
    made = trainer(run=tmp_path / "run", steps=12, eval_every=4, lr=0.2, schedule="constant")
    reports = list(train(made))
    losses = [report.evaluation.val_loss for report in of(Evaluated, reports)]
    assert end_of(reports).evaluation.val_loss == min(losses) < losses[-1]
    best_so_far = [loss == min(losses[: i + 1]) for i, loss in enumerate(losses)]
    assert [report.best for report in of(Evaluated, reports)] == best_so_far
    kept = made.evaluator(made.run.load_model())
    assert kept.val_loss == pytest.approx(min(losses), abs=1e-6)


def test_epochs_bound_the_steps_and_the_nearer_of_two_bounds_ends_it(trainer):
    made = trainer(epochs=2.0, windows="epochs", batch_size=8, accumulate=3)
    assert made.steps == math.ceil(2 * made.sampler.steps_per_epoch / 3)
    assert end_of(train(made)).steps == made.steps
    assert trainer(steps=5, epochs=100.0).steps == 5


def test_minutes_end_it_by_the_clock(trainer, clock):
    reports = list(train(trainer(minutes=0.5, steps=0)))
    last = of(Stepped, reports)[-1]
    assert (end_of(reports).reason, end_of(reports).steps) == ("time", last.step)
    assert (30 < last.seconds <= 33, last.seconds_left) == (True, 0)
    assert [report.step for report in of(Evaluated, reports)] == [last.step]


def test_validations_saving_and_the_first_step_are_not_training_time(trainer, clock):
    made = trainer(steps=10, eval_every=1)
    end = end_of(reports := list(train(made)))
    assert (made.progress.timed_steps, made.progress.training_seconds) == (9, 19)
    assert of(Stepped, reports)[-1].tok_s == made.tokens_per_step / 2  # launched, and read
    assert end.tok_s == pytest.approx(9 * made.tokens_per_step / made.progress.training_seconds)
    assert 0 < end_of(train(trainer(steps=1))).tok_s < math.inf


def test_the_time_left_counts_no_compiling_of_the_step_or_the_validation(trainer, monkeypatch):
    made, now = trainer(steps=16, log_every=4, eval_every=4, minutes=60.0), [0.0]
    step, evaluator = made.launch_step, made.evaluator

    def launched():
        now[0] += 70.0 if made.progress.step == 0 else 1.0
        return step()

    def evaluated(model):
        now[0] += 20.0 if made.progress.step == 4 else 4.0
        return evaluator(model)

    monkeypatch.setattr("mlx_attn.training.loop.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(made, "launch_step", launched)
    monkeypatch.setattr(made, "evaluator", evaluated)
    left = [report.seconds_left for report in of(Stepped, train(made))]
    assert left == pytest.approx([12.0, 8.0, 6.0, 0.0])


def test_a_stop_on_request_saves_without_waiting_for_a_validation(trainer, tmp_path):
    made = trainer(run=tmp_path / "run", steps=50, eval_every=3)
    reports = list(train(made, lambda: made.progress.step == 3))
    assert of(Evaluated, reports) == []
    assert (end_of(reports).reason, end_of(reports).steps) == ("interrupted", 3)
    assert made.run.checkpoint.exists()
    assert made.run.load_model().config == made.model.config


def test_checkpoints_are_written_when_due_and_at_the_end(trainer, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(
        "mlx_attn.run_directory.save_arrays", lambda path, arrays, facts: saved.append(facts)
    )
    list(train(trainer(run=tmp_path / "run", steps=10, eval_every=4)))
    assert [json.loads(f["progress"])["step"] for f in saved if "progress" in f] == [4, 8, 10]


def test_a_loss_that_is_no_number_ends_it_with_step_rate_and_checkpoint(trainer, tmp_path):
    made = trainer(run=tmp_path / "run", steps=9, eval_every=0, log_every=3)
    end_of(train(made, lambda: made.progress.step == 4))
    made.model.tok_emb.weight = mx.full(made.model.tok_emb.weight.shape, math.nan)
    with pytest.raises(RunError, match="loss nan") as error:
        list(train(made))
    message = str(error.value)
    assert f"at step 5, learning rate {made.learning_rate(5):.3g}" in message
    assert f"the last good checkpoint, of step 4, is {made.run.checkpoint}" in message


def test_a_model_that_has_diverged_is_never_saved(trainer, tmp_path, monkeypatch):
    made = trainer(run=tmp_path / "best", steps=1)
    monkeypatch.setattr(made, "evaluator", lambda model: Evaluation(val_loss=30.0))
    with pytest.raises(RunError, match="validation loss 30, more than 10 times"):
        list(train(made))
    assert not made.run.weights.exists()
    made = trainer(run=tmp_path / "run")
    made.model.tok_emb.weight = mx.full(made.model.tok_emb.weight.shape, math.inf)
    said = {29.0: "a weight is not finite at step 0", 30.0: "loss 30, more than 10 times that of"}
    for loss, message in said.items():  # of 19 characters, that of guessing is 2.94
        made.progress.losses = [loss]
        with pytest.raises(RunError, match=message):
            made.save()
    assert not made.run.checkpoint.exists()


def test_a_failure_of_mlx_comes_with_advice(trainer, monkeypatch):
    def failing():
        raise RuntimeError("[metal::malloc] Unable to allocate 99 bytes.")

    made = trainer()
    monkeypatch.setattr(made, "launch_step", failing)
    with pytest.raises(RunError, match="out of memory: use a smaller batch_size"):
        list(train(made))
