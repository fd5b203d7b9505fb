"""Which trainings a process does together, and who decides that."""

from dataclasses import replace

import pytest

from mlx_attn.compare import runner as crews
from mlx_attn.compare.runner import MOST, apart, make_runner, of_one_form
from mlx_attn.compare.tuning import TunedArm, trial_for
from mlx_attn.errors import ConfigError


@pytest.fixture
def cells(protocol):
    """Two arms, three seeds, two factors of the learning rates."""
    plan = protocol()
    return [
        trial_for(plan, TunedArm(arm, {}, scale), seed)
        for arm in plan.arms
        for seed in range(3)
        for scale in (1.0, 2.0)
    ]


@pytest.fixture
def trial(monkeypatch):
    """A GPU, what a trial of replicas finds there, and how often one was made."""
    found = {"faster": True, "trials": 0}
    monkeypatch.setattr(crews, "on_gpu", lambda: True)

    def pays_off(settings, corpus):
        found["trials"] += 1
        return found["faster"]

    monkeypatch.setattr(crews, "pays_off", pays_off)
    return found


@pytest.fixture
def way(tmp_path, protocol):
    """How a comparison in a directory is trained."""
    plan = protocol()

    def of(together="auto", jobs=1):
        return make_runner(tmp_path, jobs, together, lambda: plan.settings(plan.arms[0])).way

    return of


def test_apart_every_training_is_alone(cells):
    assert apart(cells) == [[cell] for cell in cells]


def test_trainings_that_differ_in_seed_and_rate_are_together(cells):
    batches = of_one_form(cells)
    assert [{cell.arm for cell in batch} for batch in batches] == [{"standard"}, {"no-query"}]
    assert [cell for batch in batches for cell in batch] == cells


@pytest.mark.parametrize(("key", "value"), [("steps", 9), ("merged_lr", 0.5), ("batch_size", 2)])
def test_trainings_that_differ_in_more_are_not(cells, key, value):
    other = replace(cells[0], settings={**cells[0].settings, key: value})
    assert of_one_form([cells[0], other]) == [[cells[0]], [other]]


def test_not_too_many_are_together(cells):
    many = [replace(cells[0], repeat=i) for i in range(MOST + 3)]
    assert [len(batch) for batch in of_one_form(many)] == [MOST, 3]


def test_with_dropout_every_training_is_alone(cells):
    noisy = [replace(c, settings={**c.settings, "drop_rate": 0.1}) for c in cells]
    assert of_one_form(noisy) == apart(noisy)


def test_on_a_gpu_a_trial_decides(way, trial):
    assert way() == "as replicas"
    trial["faster"] = False
    assert way() == "apart"


def test_side_by_side_processes_need_no_trial(way, trial):
    assert way(jobs=2) == "apart"
    assert trial["trials"] == 0


def test_on_a_processor_results_are_the_same_bits_without_a_trial(way, trial, monkeypatch):
    monkeypatch.setattr(crews, "on_gpu", lambda: False)
    assert way(jobs=1) == "apart"
    assert trial["trials"] == 0


@pytest.mark.parametrize(("together", "expected"), [("on", "as replicas"), ("off", "apart")])
def test_whoever_says_so_gets_it_without_a_trial(way, trial, together, expected):
    assert way(together) == expected
    assert trial["trials"] == 0


@pytest.mark.parametrize(("folder", "kept"), [("trainings", "apart"), ("replicas", "as replicas")])
def test_it_goes_on_as_it_began(way, trial, tmp_path, folder, kept):
    trial["faster"] = kept == "apart"
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "0.json").touch()
    assert way() == kept


def test_both_ways_keep_their_trainings_apart(tmp_path, cells):
    one, other = (make_runner(tmp_path, 1, way, lambda: None) for way in ("on", "off"))
    one.store.keep(cells[0], "{}")
    assert other.missing(cells[:1]) == cells[:1]
    assert one.missing(cells[:1]) == []


def test_dropout_together_is_refused(way, shared):
    shared["drop_rate"] = 0.1
    with pytest.raises(ConfigError, match="replicas would share"):
        way("on")
