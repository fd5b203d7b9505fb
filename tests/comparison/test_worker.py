"""What a worker checks before it trains, and what it returns."""

import json
from dataclasses import replace

import pytest

from mlx_attn.comparison import worker
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.trial import outcome_from, train_trial
from mlx_attn.comparison.worker import inspect_worker, order_for, train_order
from mlx_attn.verify.checks import Check


@pytest.fixture
def trial(protocol, runner):
    run = ComparisonRun(protocol(), runner)
    return run.protocol.trial(run.protocol.arms[0], 0)


@pytest.fixture
def order(trial):
    """An order that went through JSON, as over a network."""
    return json.loads(json.dumps(order_for(trial)))


def test_a_trial_returns_its_record_by_value(trial, order):
    answer = json.loads(json.dumps(train_order(order)))
    outcome = outcome_from(answer, trial, "the answer")
    here = train_trial(trial)
    assert isinstance(outcome, TrialResult)
    assert isinstance(here, TrialResult)
    assert answer["digest"] == trial.digest
    assert outcome.val_loss == here.val_loss
    assert outcome.machine["mlx"]


def test_a_plugin_that_is_not_there_or_has_changed_is_named_and_not_even_run(order, tmp_path):
    file = tmp_path / "mine.py"
    order["plugins"] = [{"path": str(file), "sha256": "0" * 64, "names": ["score=mine"]}]
    order["digest"] = worker.as_record(
        {k: v for k, v in order.items() if k not in ("digest", "versions")}, worker.Trial, "it"
    ).digest
    assert f"{file}: cannot be read" in inspect_worker([order])["unfit"]
    file.write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    assert "has changed since the comparison began" in inspect_worker([order])["unfit"]
    assert not (tmp_path / "trace").exists()


def test_a_machine_whose_verify_fails_is_unfit(order, monkeypatch):
    def wrong(rounding):
        """Raises."""
        raise ArithmeticError("1 + 1 = 3")

    monkeypatch.setattr(worker, "QUICK", (Check("products", wrong),))
    worker.check_arithmetic.cache_clear()
    try:
        assert inspect_worker([order])["unfit"] == "verify finds wrong results: products on the cpu"
        assert "unfit" in train_order(order)
    finally:
        worker.check_arithmetic.cache_clear()


def test_a_text_that_is_not_there_can_be_sent_unless_it_is_another(
    order, story, monkeypatch, tmp_path
):
    text = story.read_text()
    story.unlink()
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "other machine"))
    assert "no such file" in inspect_worker([order])["lacks"]
    assert "another text" in inspect_worker([order], "this is not the text. " * 50)["unfit"]
    assert "kind" in inspect_worker([order], text)
    assert train_order(order)["training"]
    story.write_text(text[::-1])
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "a third machine"))
    assert "another text" in inspect_worker([order])["lacks"]
    assert "has changed" in train_order(order)["failed"]


def test_another_version_or_order_is_unfit_and_named(order):
    other = {**order, "versions": [order["versions"][0], "0.1.0", order["versions"][2]]}
    assert "mlx is " in train_order(other)["unfit"]
    assert "and 0.1.0 where the command was given" in inspect_worker([other])["unfit"]
    order["settings"]["steps"] = 9
    assert "digest differs" in train_order(order)["unfit"]


def test_a_cancelled_comparison_ends_its_trainings_and_one_that_diverges_is_an_answer(trial):
    wild = order_for(replace(trial, settings={**trial.settings, "lr": 1e30, "clip": 0.0}))
    worker.cancel("some run")
    assert train_order(wild, run="some run") == {"stopped": True}
    assert "diverged" in train_order(wild, run="another run")
