"""A study's trials, trained for their records; the texts of worlds; trials in order."""

from pathlib import Path

import numpy as np
import pytest

from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.trial import Diverged, train_trial
from mlx_attn.errors import RunError
from mlx_attn.text.corpus import Split
from mlx_attn.text.sources import read_source
from mlx_attn.training.evaluation import Evaluation, beginning, losses_by_ability
from mlx_attn_studies.book import Record, RecordBook
from mlx_attn_studies.schedule import arm_plans, check_texts, module_text, text_of, train_wanted
from mlx_attn_studies.study import study_from

STORY = "the red cat sat on a mat. an old dog sat by the wet door. the cat saw the dog. " * 10


@pytest.fixture
def told(tmp_path, monkeypatch, tables):
    """The small study with a story for its text."""
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "story.txt").write_text(STORY)
    monkeypatch.chdir(tmp_path)
    for world in tables["worlds"].values():
        world["text"] = read_source("story.txt", tmp_path / "data").digest
    return study_from(tables)


def record_of_one(study, scale: float = 1.0) -> Record:
    trial = study.trial("near", "standard", 3, scale)
    outcome = train_trial(trial)
    assert outcome
    return Record.of(trial, outcome)


@pytest.fixture
def record(told):
    return record_of_one(told)


def test_a_trial_is_recorded_with_its_curve_and_its_start(told, record):
    assert record.loss > 0
    assert [point.step for point in record.curve] == [2, 4, 6, 8, 10]
    assert record.curve[-1].tokens == 10 * 4 * 16
    assert record.text == told.worlds["near"].text
    assert record.key == told.trial("near", "standard", 3, 1.0).key
    assert record.params > 1000
    assert {"chip", "system", "mlx", "device", "mlx_attn"} <= {*record.machine}
    assert record.is_intact()


def test_the_same_trial_is_the_same_record_but_for_its_time(told, record):
    again = record_of_one(told)
    assert (again.loss, again.curve, again.start) == (record.loss, record.curve, record.start)


def test_a_jittered_start_is_another_start(told, record, tables):
    tables["arms"]["twin"] = tables["arms"]["standard"] | {"jitter": True}
    twin = train_trial(study_from(tables).trial("near", "twin", 3, 1.0))
    assert twin
    assert not isinstance(twin, Diverged)
    assert twin.start != record.start


def test_a_record_is_an_outcome_of_the_store(record, tmp_path, told):
    trial, book = told.trial("near", "standard", 3, 1.0), RecordBook(tmp_path / "records")
    book.add(record)
    assert trial in book
    outcome = book[trial]
    assert isinstance(outcome, TrialResult)
    assert book.loss(trial) == record.loss == outcome.val_loss
    assert [point.val_loss for point in outcome.curve] == [p.loss for p in record.curve]


def test_a_training_that_diverges_says_so(told, tmp_path):
    record = record_of_one(told, scale=1e30)
    assert record.loss is None
    assert record.diverged
    book = RecordBook(tmp_path / "records")
    book.add(record)
    assert book.loss(told.trial("near", "standard", 3, 1e30)) == float("inf")


def test_another_text_than_the_registered_one_is_refused(told, tmp_path):
    (tmp_path / "story.txt").write_text(STORY + "and so on.")
    with pytest.raises(RunError, match="would not be comparable"):
        check_texts(told, ["near"])


def test_the_beginning_of_a_text_ends_with_a_document():
    tokens, starts = np.arange(101, dtype=np.uint16), np.arange(0, 100, 10)
    part = beginning(Split(tokens=tokens, n_bytes=101, document_starts=starts), 0.35)
    assert len(part.tokens) == 31
    assert part.document_starts is not None
    assert part.document_starts.tolist() == [0, 10, 20]


def test_the_beginning_of_a_task_keeps_what_is_scored():
    scored = np.array([0, 0, 1, 0, 1], np.uint8)
    split = Split(tokens=np.arange(5, dtype=np.uint16), n_bytes=5, scored=scored)
    assert np.array_equal(np.asarray(beginning(split, 0.6).scored), [0, 0, 1])
    assert losses_by_ability(Evaluation(val_loss=2.0), split) == {}


def test_the_loss_is_told_by_what_tokens_call_for():
    """Of two tokens of the first ability and one of the second: 3 and 5 nats, floors 1 and 2."""
    split = Split(
        tokens=np.arange(4, dtype=np.uint16),
        n_bytes=4,
        token_abilities=np.array([0, 0, 0, 1], np.uint8),
        ability_floor_nats={"free": 1.0, "recall": 2.0},
    )
    unit = np.log(2) * 4
    shares = {"free": (3 - 1.0) / unit, "recall": (5 - 2.0) / unit}
    found = losses_by_ability(Evaluation(val_loss=8 / 3, abilities=shares), split)
    assert found == pytest.approx({"free": 1.5, "recall": 5.0})


def test_modules_make_up_a_text_with_their_source(tables, tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path))
    tables["worlds"]["near"]["modules"] = ["bisect", "json"]
    world = study_from(tables).worlds["near"]
    text = Path(text_of(world)).read_text(encoding="utf-8")
    assert "def insort_right" in text
    assert "class JSONEncoder" not in text  # json/encoder.py, another module
    assert "from .decoder import" in text


def test_modules_of_another_python_are_refused_and_not_kept_for_trials(tables, told, tmp_path):
    tables["worlds"]["near"] |= {"modules": ["bisect"], "text": "0" * 32}
    study = study_from(tables)
    with pytest.raises(RunError, match=r"would not be comparable \(Python"):
        check_texts(study, ["near"])
    assert [*(tmp_path / "data" / "sent").iterdir()] == []


def test_a_module_that_there_is_not_is_named():
    with pytest.raises(RunError, match="no source of its module nothing_of_the_kind"):
        module_text(["bisect", "nothing_of_the_kind"])


@pytest.fixture
def book(tmp_path):
    return RecordBook(tmp_path / "records")


@pytest.fixture
def trials(told, book):
    """The trials of the small study as they end, of this many seconds at most."""
    plans = lambda: arm_plans(told, book.records)  # noqa: E731 - as the command gives it
    return lambda seconds=0.0: train_wanted(told, plans, Runner(book, 1), seconds)


@pytest.mark.usefixtures("in_this_process")
def test_trials_are_trained_in_order_and_kept(trials, book):
    ended = trials()
    found = [next(ended) for _ in range(3)]
    assert [trial.seed for trial, _, _ in found] == [10, 11, 12]
    assert [left for _, _, left in found] == [44, 43, 42]  # of 5 arms, 3 factors, 3 seeds
    kept = RecordBook(book.folder)
    assert [kept.loss(trial) for trial, _, _ in found] == [
        round(outcome.val_loss, 7) for _, outcome, _ in found
    ]


@pytest.mark.usefixtures("in_this_process")
def test_no_trial_is_started_when_the_time_is_over(trials):
    assert [*trials(seconds=1e-9)] == []


@pytest.mark.usefixtures("in_this_process")
def test_a_training_that_fails_is_named(trials, monkeypatch):
    def fails(*_):
        raise MemoryError("no memory")

    monkeypatch.setattr("mlx_attn.comparison.worker.train_trial", fails)
    with pytest.raises(RunError, match=r"'standard', seed 10, failed: no memory"):
        next(trials())
