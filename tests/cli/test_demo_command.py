import json

import pytest

from mlx_attn.cli import demo
from mlx_attn.cli.demo import Result


@pytest.fixture
def showing(workshop, run_command, tiny_flags, monkeypatch):
    """Runs a demo of trainings that take a moment, without a browser."""
    flags = dict(flag.lstrip("-").replace("-", "_").split("=") for flag in tiny_flags)
    recipe = {key: int(value) if value.isdigit() else value for key, value in flags.items()}
    monkeypatch.setattr(demo, "RECIPE", {"preset": "nano", **recipe})
    return lambda *flags: run_command("demo", "--no-open", *flags)


def test_a_demo_trains_two_forms_and_says_how_far_apart_they_are(showing, workshop):
    result = showing()
    assert result.exit_code == 0
    assert result.stderr.count("bits per byte in") == 2 * len(demo.SEEDS)
    assert "no-out-proj minus standard: " in result.stdout
    assert "95 % interval" in result.stdout
    assert "A demonstration: three seeds" in result.stdout
    page = (workshop / "runs" / "demo-no-out-proj.html").read_text()
    assert "Where do demo-standard/seed-0 and demo-no-out-proj/seed-0 differ?" in page


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-out-porj", "unknown variant 'no-out-porj': did you mean 'no-out-proj'?"),
        ("standard", "a demo compares standard with another form: name that one"),
    ],
)
def test_a_form_that_cannot_be_compared_is_refused_before_anything_is_trained(
    name, said, showing, workshop
):
    result = showing("--variant", name)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (workshop / "runs").exists()


def test_a_second_demo_keeps_what_the_first_one_trained(showing):
    first, second = showing("--json"), showing("--json")
    assert second.stderr.count("trained before") == 2 * len(demo.SEEDS)
    assert json.loads(first.stdout) == json.loads(second.stdout)


@pytest.mark.slow
def test_other_settings_or_overwrite_train_again(showing, monkeypatch):
    showing()
    assert "trained before" not in showing("--overwrite").stderr
    monkeypatch.setitem(demo.RECIPE, "steps", 4)
    assert "trained before" not in showing().stderr


def test_an_interrupted_demo_ends_in_one_line_and_goes_on_later(showing, monkeypatch):
    whole = json.loads(showing("--json", "--overwrite").stdout)
    asked = iter(range(100))
    with monkeypatch.context() as patch:
        patch.setattr(demo._Progress, "begins", lambda self, *name: None)
        patch.setattr(demo, "graceful_interrupt", lambda announce: PressedCtrlC(asked))
        result = showing("--overwrite")
    assert result.exit_code == 130
    assert result.stderr == "stopped; 'mlx-attn demo' goes on from here\n"
    assert result.stdout == ""
    assert json.loads(showing("--json").stdout) == whole


class PressedCtrlC:
    """A person who presses Ctrl-C at the fourth time of asking."""

    def __init__(self, asked):
        self.asked = asked

    def __enter__(self):
        return lambda: next(self.asked) >= 3

    def __exit__(self, *exception):
        return None


def test_the_interval_is_students():
    mean, low, high = Result(("a", "b"), [[1.0, 1.0, 1.0], [1.1, 1.2, 1.3]]).interval()
    assert mean == pytest.approx(0.2)
    assert (low, high) == pytest.approx((0.2 - 4.303 * 0.1 / 3**0.5, 0.2 + 4.303 * 0.1 / 3**0.5))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([1.1, 0.9, 1.0], "The interval holds 0: these trainings do not say which form is better."),
        ([1.1, 1.11, 1.12], "The interval leaves out 0: here, after 300 steps, a is better."),
        ([0.9, 0.91, 0.92], "The interval leaves out 0: here, after 300 steps, b is better."),
    ],
)
def test_a_demo_claims_no_more_than_its_interval(second, said):
    assert said in list(Result(("a", "b"), [[1.0, 1.0, 1.0], second]).lines())
