"""The demo: a small comparison, its answers in words, and two models to look at."""

import json
import re

import pytest

from mlx_attn.cli import demo
from tests.cli.conftest import TINY_SETTINGS


@pytest.fixture
def showing(workshop, run_command, monkeypatch, in_this_process, no_figures):
    """Runs a demo of trainings that take a moment, without a browser."""
    tiny = {key: value for key, value in TINY_SETTINGS.items() if "every" not in key}
    monkeypatch.setattr(demo, "RECIPE", {"preset": "nano", **tiny})
    monkeypatch.setattr(demo, "SEEDS", 2)
    return lambda *flags: run_command("demo", "--no-browser", *flags)


def test_a_demo_answers_its_question_and_tells_what_one_seed_can_say(showing, workshop):
    result = showing()
    assert result.exit_code == 0
    assert re.match(r"about \d+:\d\d on this machine\n", result.stderr)
    assert f"q_h = k_h = x W_query_h\n{demo.QUESTIONS[demo.DEFAULT]}" in result.stdout
    assert "Nothing but these pairs shows how far they spread" in result.stdout
    assert "One seed each does not tell: standard itself ends up to 0." in result.stdout
    assert "to the other:       /vs runs/demo-shared-query-key" in result.stdout
    assert (workshop / "runs" / "demo" / "report.html").exists()
    page = (workshop / "runs" / "demo-shared-query-key.html").read_text()
    assert "Where do demo-standard and demo-shared-query-key differ?" in page
    (told,) = re.findall(r"W_key be equal\? (.*)", result.stdout)
    assert f'"verdict": "{told}"' in page


def test_a_second_demo_keeps_what_the_first_one_trained(showing, workshop):
    first = showing("--json")
    weights = workshop / "runs" / "demo-standard" / "model.safetensors"
    changed = weights.stat().st_mtime_ns
    second = showing("--json")
    trainings = 2 * demo.SEEDS
    assert f"verdict: {trainings} trainings, {trainings} of them finished before" in second.stderr
    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert weights.stat().st_mtime_ns == changed
