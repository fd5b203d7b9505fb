"""One run, trained for its record; the texts of worlds; runs in order until there are none left."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.answers import training
from mlx_attn.answers.book import RecordBook
from mlx_attn.answers.schedule import arm_plans
from mlx_attn.answers.study import Run, study_from
from mlx_attn.answers.training import (
    beginning,
    data_of,
    measured,
    module_text,
    text_digest,
    train_all,
    train_run,
)
from mlx_attn.errors import RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.text.corpus import Split
from mlx_attn.training.evaluation import Evaluator

STORY = "the red cat sat on a mat. an old dog sat by the wet door. the cat saw the dog. " * 10


@pytest.fixture
def told(tmp_path, monkeypatch, tables):
    """The small study with a story for its text."""
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "story.txt").write_text(STORY)
    monkeypatch.chdir(tmp_path)
    training._corpus.cache_clear()
    for world in tables["worlds"].values():
        world["text"] = text_digest(study_from(tables).worlds["near"])
    return study_from(tables)


@pytest.fixture
def record(told):
    return train_run(told, Run(world="near", arm="standard", seed=3, scale=1.0))


def test_a_run_is_recorded_with_its_curve_and_its_start(told, record):
    assert record.loss > 0
    assert [point.step for point in record.curve] == [2, 4, 6, 8, 10]
    assert record.curve[-1].tokens == 10 * 4 * 16
    assert record.text == told.worlds["near"].text
    assert record.key == told.key(Run(world="near", arm="standard", seed=3, scale=1.0))


def test_the_same_run_is_the_same_record_but_for_its_time(told, record):
    again = train_run(told, Run(world="near", arm="standard", seed=3, scale=1.0))
    assert (again.loss, again.curve, again.start) == (record.loss, record.curve, record.start)


def test_a_run_that_diverges_says_so(told):
    record = train_run(told, Run(world="near", arm="standard", seed=0, scale=1e30))
    assert record.loss is None
    assert record.diverged


def test_another_text_than_the_registered_one_is_refused(told, tmp_path):
    (tmp_path / "story.txt").write_text(STORY + "and so on.")
    with pytest.raises(RunError, match="would not be comparable"):
        train_run(told, Run(world="near", arm="standard", seed=0, scale=1.0))


def test_the_beginning_of_a_text_ends_with_a_document():
    tokens, starts = np.arange(101, dtype=np.uint16), np.arange(0, 100, 10)
    part = beginning(Split(tokens=tokens, n_bytes=101, document_starts=starts), 0.35)
    assert len(part.tokens) == 31
    assert part.document_starts is not None
    assert part.document_starts.tolist() == [0, 10, 20]


def test_of_a_task_only_the_answers_count(monkeypatch):
    scored = np.array([0, 0, 1, 0, 1], np.uint8)
    split = Split(tokens=np.arange(5, dtype=np.uint16), n_bytes=5, scored=scored)
    losses = np.array([0.0, 9.0, 1.0, 9.0, 3.0])
    monkeypatch.setattr(Evaluator, "token_losses", lambda self, model: losses)
    model = GPT(GPTConfig(vocab_size=8, context_length=4, emb_dim=8, n_heads=2, n_layers=1))
    assert measured(model, Evaluator(split, 4)) == (2.0, {})
    assert np.array_equal(np.asarray(beginning(split, 0.6).scored), [0, 0, 1])


def test_modules_make_up_a_text_with_their_source(tables, tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path))
    tables["worlds"]["near"]["modules"] = ["bisect", "json"]
    world = study_from(tables).worlds["near"]
    text = Path(data_of(world)).read_text(encoding="utf-8")
    assert "def insort_right" in text
    assert "class JSONEncoder" not in text  # json/encoder.py, another module
    assert "from .decoder import" in text


def test_a_module_that_there_is_not_is_named():
    with pytest.raises(RunError, match="no source of its module nothing_of_the_kind"):
        module_text(["bisect", "nothing_of_the_kind"])


@pytest.fixture
def book(tmp_path):
    return RecordBook(tmp_path / "records")


@pytest.mark.usefixtures("in_this_process")
def test_runs_are_trained_in_order_and_kept(told, book):
    runs = train_all(told, book, lambda: arm_plans(told, book.records), jobs=1)
    found = [next(runs)[0] for _ in range(3)]
    assert [record.seed for record in found] == [10, 11, 12]
    assert RecordBook(book.folder).records == {record.key: record for record in found}


@pytest.mark.usefixtures("in_this_process")
def test_no_run_is_started_when_the_time_is_over(told, book):
    plans = lambda: arm_plans(told, book.records)  # noqa: E731 - as the command gives it
    assert [*train_all(told, book, plans, jobs=1, seconds=1e-9)] == []


@pytest.mark.usefixtures("in_this_process")
def test_a_run_that_fails_is_named(told, book, monkeypatch):
    def fails(*_):
        raise MemoryError("no memory")

    monkeypatch.setattr("mlx_attn.answers.training.train_run", fails)
    with pytest.raises(RunError, match=r"standard in near, seed 10, failed: no memory"):
        next(train_all(told, book, lambda: arm_plans(told, book.records), jobs=1))


def test_mlx_is_on_the_processor_or_a_gpu(record):
    assert record.machine["device"] == mx.default_device().type.name
