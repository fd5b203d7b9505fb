"""Trainings in processes of their own."""

import os
import sys
from dataclasses import replace

import pytest

from mlx_attn.compare.comparison import ComparisonRun
from mlx_attn.compare.result import TrialResult
from mlx_attn.compare.runner import Crew, Diverged, Store, train_trial
from mlx_attn.compare.tuning import TunedArm, trial_for
from mlx_attn.cpu import single_stream
from mlx_attn.errors import RunError


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "trainings")


@pytest.fixture
def cells(protocol, store):
    """Two trainings of a tenth of a second."""
    comparing = ComparisonRun(protocol(), Crew(store), {})
    choice = TunedArm(comparing.protocol.arms[0])
    return [trial_for(comparing.protocol, choice, seed) for seed in (0, 1)]


def without_time(training):
    assert isinstance(training, TrialResult)
    curve = tuple(replace(point, seconds=0.0) for point in training.curve)
    return replace(training, tok_s=0.0, seconds=0.0, peak_memory=0, curve=curve)


def test_trainings_side_by_side_end_like_one_in_this_process(cells, store):
    outcomes = dict(Crew(store, 2)(cells))
    alone = [without_time(single_stream(train_trial)(cell)) for cell in cells]
    assert [without_time(outcomes[cell]) for cell in cells] == alone


def test_a_finished_training_is_not_done_again(cells, store):
    list(Crew(store, 1)(cells[:1]))
    assert [cell for cell, _ in Crew(store, 1)(cells)] == cells[1:]


def test_whoever_stops_listening_loses_only_what_is_under_way(cells, store):
    working = Crew(store, 1)(cells)
    first, _ = next(working)
    working.close()
    assert first in store
    assert sum(cell in store for cell in cells) == 1


def test_a_training_that_diverges_is_kept_as_such(cells, store):
    cell = replace(cells[0], settings={**cells[0].settings, "lr": 1e30, "clip": 0.0})
    ((_, outcome),) = Crew(store, 1)([cell])
    assert isinstance(outcome, Diverged)
    assert store[cell] == outcome


def test_a_process_that_fails_is_one_line(cells, store, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match=r"'standard', seed 0, ended with code 1"):
        list(Crew(store, 1)(cells))


def test_a_changed_text_is_not_taken_for_the_old_one(cells, store, story):
    story.write_text(story.read_text()[::-1])
    with pytest.raises(RunError, match="has changed since the comparison began"):
        list(Crew(store, 1)(cells))


def test_a_damaged_file_names_itself(cells, store):
    list(Crew(store, 1)(cells[:1]))
    (file,) = store.folder.iterdir()
    file.write_text("{")
    with pytest.raises(RunError, match="delete the file to train it again"):
        store[cells[0]]


def test_as_many_trainings_at_once_as_there_are_cores(store):
    assert Crew(store).size == os.cpu_count()


def test_a_training_records_its_course(cells):
    training = train_trial(cells[0])
    assert training
    assert [point.step for point in training.curve] == list(range(1, 9))
    assert [ranks.step for ranks in training.ranks] == list(range(9))
    assert training.val_loss == training.curve[-1].val_loss
    assert training.sample
