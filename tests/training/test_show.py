import io
from dataclasses import replace

from rich.console import Console

from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Evaluated, Started, Stepped
from mlx_attn.training.show import Display
from mlx_attn.ui.terminal import age, count, duration, memory

STARTED = Started(variant="merged", step=0, steps=2000, params=9, tokens_per_step=256, run="runs/a")
STEPPED = Stepped(
    **{"step": 420, "steps": 2000, "tokens": 107520, "loss": 3.1121, "grad_norm": 0.5, "lr": 1e-3},
    **{"tok_s": 128_000.0, "peak_memory": 2_100_000_000, "seconds": 27.0, "seconds_left": 102.0},
)
LOSSES = Evaluation(val_loss=3.2042, bits_per_byte=1.5678, above_floor=0.25)
EVALUATED = Evaluated(step=400, tokens=102400, evaluation=LOSSES, best=True, seconds=26.0)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(width: int, **settings) -> Console:
    return Console(file=Terminal(), force_terminal=True, width=width, **settings)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def pipe() -> Console:
    return Console(file=io.StringIO(), highlight=False)


def test_in_a_pipe_every_report_of_progress_is_one_plain_line():
    console = pipe()
    with Display(console) as display:
        for report in (STARTED, STEPPED, EVALUATED):
            display(report)
    step, evaluation = written(console).splitlines()
    assert step == "step 420/2000  loss 3.112  1:42 left  128k tok/s  2.1 GB"
    assert evaluation.endswith("  1.5678 bits per byte (0.250 above the floor)  best so far")


def test_flags_and_terminal_choose_the_display(monkeypatch):
    assert Display(terminal(80), as_json=True, quiet=True).mode == "json"
    assert Display(terminal(80), quiet=True).mode == "quiet"
    assert Display(terminal(80)).mode == "live"
    assert Display(pipe()).mode == "plain"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Display(Console(file=io.StringIO())).mode == "plain"
    monkeypatch.setenv("TERM", "dumb")  # a terminal that cannot be redrawn
    assert Display(terminal(80)).mode == "plain"


def test_the_first_step_shows_how_long_it_compiles(monkeypatch):
    clock = iter((100.0, 140.0, 141.0))
    monkeypatch.setattr("mlx_attn.training.show.time.monotonic", lambda: next(clock))
    bar = Display(terminal(80))
    bar(replace(STARTED, compiles=True))
    console = Console(file=io.StringIO())
    console.print(*bar.get_renderables())
    assert "compiling kernels, once on this machine: 40 s" in written(console)
    bar.is_compiled = lambda: True
    console.print(*bar.get_renderables())
    assert written(console).rstrip().endswith("training")


def test_a_duration_is_told_as_a_person_would_tell_it():
    told = [duration(seconds) for seconds in (7, 7_390, 1e6, 1e9, float("nan"))]
    assert told == ["0:07", "2:03:10", "12 days", "11,574 days", "-"]
    assert [*map(age, (5, 119, 7200, 3e5))] == ["5 s", "119 s", "2 h", "3 days"]


def test_counts_have_three_digits_and_bytes_a_decimal_unit():
    told = [count(number) for number in (943, 9_430, 94_300, 999_499, 999_500)]
    assert told == ["943", "9.43k", "94.3k", "999k", "1.00M"]
    assert [*map(memory, (2e4, 1.2e7, 1.2e9))] == ["20 kB", "12 MB", "1.2 GB"]
