"""A ledger of ideas, with trainings by formula: booked, kept, refused, continued, attacked."""

import pytest

from mlx_attn import files
from mlx_attn.comparison.ideas import LEDGER, IdeaRun, ledgers_in, read_ledger
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.sequence import CONTROL_SEEDS, level_of
from mlx_attn.comparison.trial import Diverged, Store
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.plugins import load_plugins
from tests.comparison.conftest import FormulaRunner, conclude

PLUGIN = """
from pathlib import Path
from mlx_attn.attention import Variant, choice, register
factor = float((Path(__file__).parent / "factor.txt").read_text())
@choice("logits", "idea", "s")
def change(layer, s):
    return {code}
register(Variant(name="idea", logits="idea", formula="", summary=""))
"""


@pytest.fixture
def write(no_plugins, tmp_path):
    """Writes the user's file and loads it."""

    def write(code: str = "factor * s", factor: float = 1.5) -> None:
        (tmp_path / "factor.txt").write_text(str(factor))
        (tmp_path / "idea.py").write_text(PLUGIN.format(code=code))
        load_plugins(tmp_path / "idea.py")

    return write


@pytest.fixture
def ask(protocol, runner, tmp_path):
    """Asks for the next idea; returns it, and the number of trainings that it took."""
    runner.noise = 0.01

    def ask(*arms: str):
        step = IdeaRun(ComparisonRun(protocol(*arms), runner), tmp_path / "loop")
        before = len(runner.done)
        for _ in step:
            pass
        return step.idea, len(runner.done) - before

    return ask


def test_a_second_idea_reuses_the_control_and_a_repeated_call_trains_nothing(ask, runner, tmp_path):
    runner.effects = {"no-query": 0.1, "no-value": -0.002}
    first, trained = ask("standard", "no-query")
    assert (first.verdict, first.reason, trained) == ("worse", "dropped", CONTROL_SEEDS + 3)
    assert ask("standard", "no-query") == (first, 0)
    second, trained = ask("standard", "no-value")
    assert trained == second.seeds < CONTROL_SEEDS
    assert [second.number, second.level, second.margin] == [2, level_of(2), 0.01]
    assert [*ledgers_in(tmp_path).values()] == ["2 ideas: 1 worse, 1 not known"]


def test_a_kept_idea_is_the_control_on_fresh_seeds(ask, protocol, runner, write, tmp_path):
    runner.effects = {"idea": -0.5}
    write()
    (tmp_path / "factor.txt").write_text("2")
    with pytest.raises(RunError, match="a file has just changed"):
        ask("standard", "idea")
    write()
    kept, _ = ask("standard", "idea")
    assert (kept.verdict, kept.seeds) == ("better", 5)
    assert ask("standard", "idea") == (kept, 0)
    assert conclude(protocol("standard", "idea"), runner).versions.items() >= kept.plugins.items()
    write("factor * s - 1")
    runner.effects = {"idea": 0.0, "idea, idea 1": -0.5}
    worse, trained = ask("standard", "idea")
    assert worse.difference == pytest.approx(0.5, abs=0.05)
    assert trained == CONTROL_SEEDS + worse.seeds
    assert {trial.seed for trial in runner.done[-trained:]} == {*range(100, 112)}
    assert all([*trial.plugins[0]["files"]] == ["factor.txt"] for trial in runner.done[-trained:])
    write("factor * s - 1", factor=1.6)  # a file that it reads
    runner.effects["idea"] = -1.0
    second, _ = ask("standard", "idea")
    assert (second.number, second.verdict) == (3, "better")
    write("factor * s - 2")
    _, trained = ask("standard", "idea")
    assert {trial.arm for trial in runner.done[-trained:]} == {"idea", "idea, idea 3"}


def test_an_idea_is_alone_and_no_worse_because_its_control_diverges(ask, runner):
    with pytest.raises(ConfigError, match="name the control and one idea"):
        ask("standard", "no-query", "no-value")
    runner.diverges = ("standard",)
    with pytest.raises(RunError, match=r"nothing to compare with.* standard: with seed 0"):
        ask("standard", "no-query")


def test_a_leak_is_refused_before_it_is_booked(ask, write, tmp_path):
    write("s - s.mean(axis=-2, keepdims=True)")
    with pytest.raises(ConfigError, match="read later ones"):
        ask("standard", "idea")
    assert not read_ledger(tmp_path / "loop")


@pytest.mark.parametrize(
    ("error", "verdict", "is_open"),
    [
        (ConfigError("plugin idea.py, line 3: ValueError"), "worse", False),
        (None, "worse", False),  # it diverges
        (KeyboardInterrupt(), "not known", True),
        (RunError("the disk is full"), "not known", True),
    ],
)
def test_an_idea_that_fails_is_worse_and_one_that_is_interrupted_goes_on(
    ask, runner, tmp_path, monkeypatch, error, verdict, is_open
):
    train = type(runner)._by_formula

    def fail(self, trial):
        if trial.arm == "no-query" and trial.seed == 1:
            if isinstance(error, ConfigError):
                raise RunError("the training failed") from error
            if error:
                raise error
            return Diverged("loss nan at step 3")
        return train(self, trial)

    with monkeypatch.context() as patch:
        patch.setattr(type(runner), "_by_formula", fail)
        if is_open:
            with pytest.raises(type(error)):
                ask("standard", "no-query")
        else:
            reason = str(error or "with seed 1 it diverged: loss nan at step 3")
            assert ask("standard", "no-query")[0].reason == reason
    (idea,) = read_ledger(tmp_path / "loop")
    assert (idea.verdict, idea.is_open, idea.seeds) == (verdict, is_open, 0)
    idea, trained = ask("standard", "no-query")
    assert trained == max(0, idea.seeds - 1)


@pytest.mark.parametrize(("arm", "higher"), [("merged", 0.5), ("merged 2: merged, steps=20", 0)])
def test_an_idea_that_takes_longer_has_its_difference_at_equal_time_too(arm, higher, ask, shared):
    shared["steps"] = 10
    idea, _ = ask("standard", arm)
    # Half of its time is over: after 5 steps the formula's curve is 0.5 higher, after 10 no more.
    assert idea.at_equal_time == pytest.approx(idea.difference + higher)


def test_a_ledger_changed_by_hand_or_of_another_control_is_refused(ask, runner, tmp_path):
    runner.effects = {"no-query": 0.1}
    ask("standard", "no-query")
    with pytest.raises(RunError, match="is of another control"):
        ask("no-value", "no-query")
    file = tmp_path / "loop" / LEDGER
    content = file.read_text()
    for changed in (content.replace("worse", "better"), content.splitlines()[0]):
        file.write_text(changed)
        with pytest.raises(RunError, match="was changed by hand"):
            ask("standard", "no-value")
    assert "was changed by hand" in ledgers_in(tmp_path).popitem()[1]


def test_a_folder_that_was_removed_ends_it_with_the_next_training(protocol, tmp_path):
    loop = tmp_path / "loop"
    step = IdeaRun(ComparisonRun(protocol(), FormulaRunner(Store(loop / "trainings"))), loop)
    with pytest.raises(RunError, match="loop was removed or renamed meanwhile"):
        [files.remove(loop) for _ in step]
    assert not loop.exists()
