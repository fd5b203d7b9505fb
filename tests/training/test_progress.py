import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Ended, Evaluated, Started, Stepped
from mlx_attn.training.show import (
    COMPILING,
    Display,
    closing_lines,
    display_for,
    evaluation_line,
    step_line,
)

STARTED = Started(variant="merged", step=0, steps=2000, params=9, tokens_per_step=256, run="runs/a")
STEPPED = Stepped(
    step=420,
    steps=2000,
    tokens=107520,
    loss=3.1121,
    grad_norm=0.5,
    lr=0.001,
    tok_s=128_000.0,
    peak_memory=2_100_000_000,
    seconds=27.0,
    seconds_left=102.0,
)
EVALUATED = Evaluated(
    step=400,
    tokens=102400,
    evaluation=Evaluation(val_loss=3.2042, bits_per_byte=1.5678, above_floor=0.25),
    best=True,
    seconds=26.0,
)
ENDED = Ended(
    variant="merged",
    steps=2000,
    tokens=512_000,
    evaluation=Evaluation(val_loss=2.5, bits_per_byte=1.25),
    params=9,
    tok_s=128_000.0,
    peak_memory=2_100_000_000,
    seconds=129.0,
    run="runs/a",
    reason="done",
)
REPORTS = [STARTED, STEPPED, EVALUATED, ENDED]


class Terminal(io.StringIO):
    """What a terminal is sent."""

    def isatty(self) -> bool:
        return True


def terminal(width: int, **settings) -> Console:
    return Console(file=Terminal(), force_terminal=True, width=width, **settings)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def pipe() -> Console:
    return Console(file=io.StringIO(), highlight=False)


def shown(display, reports) -> None:
    with display:
        for report in reports:
            display(report)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (100, "step 420/2000  loss 3.112  val 3.204  128k tok/s  2.1 GB  1:42 left"),
        (66, "step 420/2000  loss 3.112  val 3.204  128k tok/s  1:42 left"),
        (58, "step 420/2000  loss 3.112  val 3.204  1:42 left"),
        (40, "step 420/2000  loss 3.112  1:42 left"),
        (30, "step 420/2000  loss 3.112"),
    ],
)
def test_where_room_is_short_what_matters_least_is_left_out(width, line):
    assert step_line(STEPPED, "3.204", width) == line


def test_without_a_bound_in_steps_there_is_no_number_of_them():
    assert step_line(replace(STEPPED, steps=0)).startswith("step 420  loss")


@given(st.integers(25, 120))
def test_the_line_fits_into_the_width(width):
    assert len(step_line(STEPPED, "3.204", width)) <= width


def test_the_line_of_a_validation():
    assert evaluation_line(EVALUATED) == (
        "step 400  val loss 3.2042 nats per token  1.5678 bits per byte "
        "(0.250 above the floor)  best so far"
    )


def test_the_closing_lines_tell_loss_cost_and_abilities():
    assert ENDED.evaluation
    abilities = {"copy": 0.2, "recall": 0.1}
    found = replace(ENDED.evaluation, above_floor=0.3, abilities=abilities)
    assert closing_lines(replace(ENDED, evaluation=found)) == [
        "best val loss 2.5000 nats per token, 1.2500 bits per byte; 2000 steps, 512k tokens, 2:09, "
        "128k tok/s, 2.1 GB",
        "0.300 bits per byte above the floor: copy 0.200, recall 0.100",
    ]
    assert closing_lines(replace(ENDED, evaluation=None)) == ["2000 steps, no validation yet"]


def test_in_a_pipe_every_report_of_progress_is_one_plain_line():
    console = pipe()
    shown(Display(console, "plain"), REPORTS)
    assert written(console).splitlines() == [step_line(STEPPED), evaluation_line(EVALUATED)]


def test_in_a_pipe_a_message_is_one_line_and_its_brackets_are_no_markup():
    console = pipe()
    Display(console, "plain").message("word " * 100 + "[red]runs/[1][/red]")
    assert written(console) == "word " * 100 + "[red]runs/[1][/red]\n"


def test_a_sample_cannot_steer_the_terminal(capsys):
    Display(pipe(), "plain").conclude(ENDED, "a\x1b[2Jb\x07")
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().out)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_the_live_line_never_needs_a_second_line(width):
    console = terminal(width)
    display = Display(console, "live")
    shown(display, [STARTED, STEPPED])
    with display:
        lines = console.render_lines(display._bar.get_renderable(), pad=False)
    assert len(lines) == 1
    assert sum(segment.cell_length for segment in lines[0]) <= width


@pytest.mark.parametrize(("width", "has_bar"), [(40, False), (100, True)])
def test_a_narrow_terminal_has_numbers_instead_of_a_bar(width, has_bar):
    console = terminal(width)
    shown(Display(console, "live"), [STARTED, STEPPED])
    assert ("━" in written(console)) == has_bar
    assert "step 420/2000" in written(console)


def test_a_validation_leaves_a_line_and_its_loss_joins_the_live_one():
    console = terminal(120, color_system=None)
    shown(Display(console, "live"), [STARTED, EVALUATED, STEPPED])
    assert evaluation_line(EVALUATED) in written(console)
    assert "val 3.204" in written(console)


def test_flags_and_terminal_choose_the_display(monkeypatch):
    assert display_for(True, True, terminal(80)).mode == "json"
    assert display_for(False, True, terminal(80)).mode == "quiet"
    assert display_for(False, False, terminal(80)).mode == "live"
    assert display_for(False, False, pipe()).mode == "plain"
    monkeypatch.setenv("TERM", "dumb")  # a terminal that cannot be redrawn
    assert display_for(False, False, terminal(80)).mode == "plain"


def test_a_pipe_stays_plain_whatever_forces_colour(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = Console(file=io.StringIO())
    assert console.is_terminal
    assert display_for(False, False, console).mode == "plain"


@pytest.mark.parametrize("make", [lambda: terminal(80), pipe], ids=["bar", "lines"])
def test_that_the_first_step_compiles_is_shown_while_it_does(make):
    for compiles in (True, False):
        console = make()
        shown(display_for(False, False, console), [replace(STARTED, compiles=compiles)])
        assert (COMPILING in written(console)) == compiles
