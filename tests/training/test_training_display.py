import io
import json

import pytest
from rich.console import Console

from mlx_attn.run_directory import open_run
from mlx_attn.training.loop import SAMPLE_TOKENS, write_sample
from mlx_attn.training.report import ProgressWithCurve, line_plot, plan_rows
from mlx_attn.training.show import Display, follow


@pytest.fixture
def stderr():
    """What goes to stderr."""
    return io.StringIO()


@pytest.fixture
def display(stderr):
    return Display(Console(file=stderr, highlight=False), "plain")


def never() -> bool:
    return False


def lines(run, file: str) -> list[str]:
    return (run.path / file).read_text().splitlines()


def test_a_training_leaves_its_reports_and_samples_in_the_run(learner, letters, display, capsys):
    trainer = learner()
    assert follow(trainer, letters.tokenizer, display, never) == "done"
    events = [json.loads(line)["event"] for line in lines(trainer.run, "metrics.jsonl")]
    assert events == ["start", "step", "step", "eval", "step", "step", "eval", "end"]
    assert [line for line in lines(trainer.run, "samples.txt") if line.startswith("---")] == [
        "--- step 3",
        "--- step 6",
    ]
    assert "best val loss" in capsys.readouterr().out


def test_what_a_resumed_training_repeats_is_written_once(learner, letters, display):
    trainer = learner()
    follow(trainer, letters.tokenizer, display, lambda: trainer.progress.step == 4)
    trainer.run.add_report({"event": "step", "step": 5})  # after the checkpoint, before a crash
    trainer.run.add_sample(5, "lost")
    again = learner(keep=False)
    again.resume(open_run(trainer.run.path))
    follow(again, letters.tokenizer, display, never)
    reports = again.run.metrics()
    assert [r["step"] for r in reports if r["event"] == "step"] == [2, 3, 4, 6]
    assert [report["event"] for report in reports].count("end") == 1
    assert "lost" not in (again.run.path / "samples.txt").read_text()


def test_a_sample_needs_no_newline_in_the_vocabulary(learner, letters):
    assert len(write_sample(learner(), letters.tokenizer)) == SAMPLE_TOKENS


def test_a_sample_leaves_the_random_state_and_the_training_mode_alone(learner, letters):
    losses = []
    for samples in (0, 2):
        trainer = learner(keep=False, drop_rate=0.5, start="gpt2")
        for _ in range(samples):
            write_sample(trainer, letters.tokenizer)
        assert trainer.model.training
        losses.append(float(trainer.launch_step()[0]))
    assert losses[0] == losses[1]


def test_the_plan_says_what_is_trained_on_what(learner, letters):
    rows = dict(plan_rows(learner(keep=False, variant="merged"), letters))
    assert rows["variant"] == "merged"
    assert "S_h" in rows["formula"]
    assert rows["model"].startswith("1 layer, 2 heads of 8, width 16, context 8")
    assert rows["text"].startswith("letters: 900 tokens to train on, 220 to validate, char")
    assert rows["training"] == "6 steps, 32 tokens a step, muon"
    unnamed = dict(plan_rows(learner(keep=False, score="no_key", output="merged"), letters))
    assert unnamed["variant"] == "no_key+linear+merged"
    assert "formula" not in unnamed


@pytest.mark.parametrize(
    ("budget", "shown"),
    [
        ({"minutes": 2.5}, "2.5 minutes"),
        ({"epochs": 3.0}, "3 epochs"),
        ({"steps": 5, "minutes": 1.0}, "5 steps or 1 minute"),
        (
            {"steps": 6, "warmup": 19},
            "the learning rate only reaches 0.3 of its peak, since its warm-up takes 19 steps",
        ),
    ],
)
def test_the_plan_says_what_bounds_the_training(learner, letters, budget, shown):
    rows = dict(plan_rows(learner(keep=False, **{"steps": 0, **budget}), letters))
    assert shown in rows["training"]


def dots(curve: list[str]) -> list[str]:
    """The lines of a curve without labels, blanks as spaces."""
    return [line[6:].replace("\u2800", " ").rstrip() for line in curve]


def test_a_falling_loss_is_drawn_from_the_top_left_to_the_bottom_right():
    lines = line_plot([8.0, 4.0, 2.0, 1.0], 12, 3, "")
    assert [line[:6] for line in lines] == ["8.00  ", "      ", "1.00  "]
    assert dots(lines) == ["⠙⢦⡀", "  ⠙⢦⡀", "    ⠙⢦"]
    assert dots(line_plot([2.0, 2.0, 2.0], 12, 2, "")) == ["⠉" * 6, ""]  # one that stays


def test_the_title_of_a_curve_gives_way_to_it():
    assert "loss" in line_plot([3.0, 1.0], 30, 2, "loss")[0]
    assert "loss" not in line_plot([1.0, 3.0], 30, 2, "loss")[0]


@pytest.mark.parametrize(
    ("width", "height", "encoding", "shown"),
    [
        (80, 24, "utf-8", True),
        (49, 24, "utf-8", False),
        (80, 10, "utf-8", False),
        (80, 24, "ascii", False),
    ],
)
def test_a_curve_is_drawn_where_there_is_room_for_it(width, height, encoding, shown):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, force_terminal=True)
    progress = ProgressWithCurve(console=console)
    for loss in (4.0, 3.0, float("nan"), 2.0):
        progress.add(loss)
    assert bool(progress.curve()) == shown
    assert all(len(line) <= width for line in progress.curve().splitlines())
