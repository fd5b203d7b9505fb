"""Trials in a pool of processes."""

import math
import multiprocessing
import os
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from mlx_attn.comparison import plan, runner, trial
from mlx_attn.comparison.plan import trial_of
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import Runner, train_order
from mlx_attn.comparison.trial import Diverged, Store, record_of, train_trial
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.machine.device import forced_path
from mlx_attn.machine.facts import arithmetic
from mlx_attn.machine.streams import single_stream
from mlx_attn.plugins import load_plugins
from mlx_attn.training.evaluation import Evaluation, Evaluator
from mlx_attn.training.loop import never
from tests.comparison.conftest import training


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "trainings")


@pytest.fixture
def trials(protocol, store):
    """Two trainings of a tenth of a second."""
    run = ComparisonRun(protocol(), Runner(store))
    return [trial_of(run.config, run.config.arms[0], seed) for seed in (0, 1)]


def without_time(result):
    assert isinstance(result, TrialResult)
    return replace(result, tok_s=0.0, seconds=0.0)


def test_side_by_side_trainings_end_like_one_in_this_process_and_leave_no_worker(trials, store):
    outcomes = {trial.digest: outcome for trial, outcome in Runner(store, 2)(trials)}
    assert not multiprocessing.active_children()
    alone = [without_time(single_stream()(train_trial)(trial)) for trial in trials]
    assert [without_time(outcomes[trial.digest]) for trial in trials] == alone


def test_what_is_above_the_floor_and_its_parts_are_in_nats(trials):
    ended: Any = SimpleNamespace(steps=1, tokens=2, tok_s=1.0, seconds=1.0)
    last = Evaluation(val_loss=3.0, bits_per_byte=1.5, abilities={"copy": 0.25, "recall": 0.625})
    made: Any = trial._outcome(trials[0], ended, last, [], 1.25)
    assert (made.above_floor, made.abilities) == (1.75, {"copy": 0.5, "recall": 1.25})


def test_processes_that_die_are_one_line(trials, store, monkeypatch):
    monkeypatch.setattr(runner, "_begin_worker", os.abort)
    with pytest.raises(RunError, match=r"^a process that trains was killed, .*continues$"):
        list(Runner(store, 1)(trials))


def test_a_script_from_standard_input_is_refused(trials, store, monkeypatch):
    monkeypatch.setattr("__main__.__file__", "<stdin>", raising=False)
    with pytest.raises(RunError, match="save the script as a file"):
        list(Runner(store, 1)(trials))


def test_the_curve_of_a_text_is_of_few_windows_and_ends_at_its_loss(trials, monkeypatch):
    monkeypatch.setattr(Evaluator, "estimate", lambda *_: next(estimates))
    estimates = iter([4.0, *[2.0] * 7])
    result: Any = train_trial(trials[0])
    assert [point.step for point in result.curve] == list(range(1, 9))
    above = [point.val_loss - result.val_loss for point in result.curve]
    assert above == pytest.approx([2.0, *[0.0] * 7])


def test_a_finished_training_is_kept_and_not_done_again(in_this_process, trials, store):
    settings = trials[0].settings
    recipe = replace(settings.training, lr=1e30, clip=0.0)
    wild = replace(trials[0], settings=replace(settings, training=recipe))
    ((_, outcome),) = Runner(store, 1)([wild])
    assert isinstance(outcome, Diverged)
    assert outcome.message.endswith("--clip 1")  # of no checkpoint: a comparison saves none
    assert store[wild] == outcome
    assert [trial for trial, _ in Runner(store, 1)([wild, trials[1]])] == trials[1:]
    store.path(wild).unlink()
    with pytest.raises(RunError, match="without the file, the same command trains it"):
        store[wild]


def test_a_training_of_other_code_is_not_used(in_this_process, trials, store, monkeypatch):
    list(Runner(store, 1)(trials[:1]))
    assert (store.of_other_code(), store.missing(trials)) == (0, trials[1:])
    for module in ("machine.facts", "comparison.trial"):
        monkeypatch.setattr(f"mlx_attn.{module}.source_digest", lambda: "another")
    assert (store.of_other_code(), store.missing(trials)) == (1, trials)


@pytest.mark.parametrize("fact", [*arithmetic()])
def test_a_training_of_other_arithmetic_is_another(trials, monkeypatch, fact):
    before = trials[0].digest
    monkeypatch.setattr(plan, "arithmetic", lambda: arithmetic() | {fact: "another"})
    assert trials[0].digest != before


def test_whoever_stops_listening_loses_only_what_is_under_way(trials, store):
    working = Runner(store, 1)(trials)
    first, _ = next(working)
    working.close()
    assert [trial for trial in trials if trial in store] == [first]
    with pytest.raises(RunError, match="told to stop"):
        train_trial(trials[1], lambda: True)


def test_a_changed_text_is_not_taken_for_the_old_one(in_this_process, trials, store, story):
    story.write_text(story.read_text()[::-1])
    with pytest.raises(RunError, match="has changed since the comparison began: put it back"):
        list(Runner(store, 1)(trials))


def test_as_many_trainings_at_once_as_there_are_cores_and_one_on_a_gpu(store, request):
    with forced_path("mac-cpu"):
        assert Runner(store).size == os.cpu_count()
    request.getfixturevalue("gpu_path")
    assert Runner(store).size == 1


@pytest.mark.parametrize("fact", [*arithmetic()])
def test_a_worker_refuses_a_trial_of_other_arithmetic_and_names_it(trials, fact):
    wanted, here = arithmetic() | {fact: "another"}, arithmetic()[fact]
    with pytest.raises(
        RunError, match=f"would train another model: {fact} is {here} there and another here$"
    ):
        train_order(asdict(trials[0]), wanted, never)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"val_loss": math.inf}, "seed 0 ended with the loss inf"),
        ({"seed": 5}, "seed 5 ended with the loss 1"),
        ({"steps": 0}, "seed 0 ended with the loss 1.0 after 0 of 8 steps"),
        ({"tok_s": 0.0}, "seed 0 ended .* at 0.0 tok/s"),
        ({"curve": [{"step": 10**30, "val_loss": 1.0}]}, "damaged"),
        ({"val_loss": "low"}, "damaged"),
    ],
)
def test_what_a_worker_returns_is_checked(
    in_this_process, trials, store, monkeypatch, damage, complaint
):
    answer = {"training": record_of(training(steps=8))["training"] | damage}
    monkeypatch.setattr(runner, "train_order", lambda *order: answer)
    failed = "of 'standard', seed 0, failed: the worker's answer:"
    with pytest.raises(RunError, match=f"{failed} {complaint}.*continues$"):
        list(Runner(store, 1)(trials[:1]))
    assert trials[0] not in store


def test_a_plugin_that_is_not_there_or_has_changed_is_named_and_not_even_run(trials, tmp_path):
    file = tmp_path / "mine.py"
    plugin = {"path": str(file), "sha256": "0" * 64, "names": ["score=mine"]}
    order = asdict(replace(trials[0], plugins=[plugin]))
    with pytest.raises(RunError, match=f"{file}: cannot be read"):
        train_order(order, arithmetic(), never)
    file.write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    with pytest.raises(RunError, match="has changed since the comparison began: put it back"):
        train_order(order, arithmetic(), never)
    assert not (tmp_path / "trace").exists()


LATE = """
from pathlib import Path
from mlx_attn.attention import choice
@choice("logits", "late", "s")
def late(layer, s):
    is_tried = Path(__file__).with_name("tried").exists()
    return s - s.mean(axis=-2, keepdims=True) if is_tried else s
"""


def test_code_that_reads_later_tokens_once_its_layers_were_tried_gets_no_loss(
    in_this_process, protocol, store, no_plugins, tmp_path
):
    (tmp_path / "late.py").write_text(LATE)
    load_plugins(tmp_path / "late.py")
    run = ComparisonRun(protocol("late: logits=late", "standard"), Runner(store, 1))
    (tmp_path / "tried").touch()
    with pytest.raises(RunError, match="the trained model reads later tokens") as refusal:
        list(run.train("verdict", [trial_of(run.config, run.config.arms[0], 0)]))
    # In a ledger of ideas it is the idea's fault, like an error of its code.
    assert isinstance(refusal.value.__cause__, ConfigError)
