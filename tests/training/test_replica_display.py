from dataclasses import replace

import pytest

from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Ended, Evaluated, Failed, Stepped
from mlx_attn.training.show import (
    MeanEvaluated,
    Means,
    MeanStepped,
    evaluation_line,
    mean_evaluated,
    mean_stepped,
    step_line,
)
from mlx_attn.training.show import replica_closing_lines as closing_lines


def stepped(step: int, loss: float) -> Stepped:
    facts = {"grad_norm": 1.0, "lr": 0.1, "tok_s": 100.0, "peak_memory": 1_000_000}
    return Stepped(
        step=step, steps=9, tokens=step, loss=loss, **facts, seconds=1.0, seconds_left=2.0
    )


def evaluated(loss: float, best: bool = True) -> Evaluated:
    return Evaluated(
        step=3,
        tokens=8,
        evaluation=Evaluation(val_loss=loss, bits_per_byte=loss / 2),
        best=best,
        seconds=1.0,
    )


def ended(steps: int, loss: float = 2.0) -> Ended:
    return Ended(
        variant="merged",
        steps=steps,
        tokens=100,
        evaluation=Evaluation(val_loss=loss, bits_per_byte=1.0),
        params=9,
        tok_s=50.0,
        peak_memory=1,
        seconds=61.0,
        run=f"runs/x/{loss}",
        reason="done",
    )


class Recorder:
    """Remembers what it is given."""

    def __init__(self):
        self.shown: list = []

    def __enter__(self):
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, report) -> None:
        self.shown.append(report)

    def message(self, text: str) -> None:
        self.shown.append(text)

    def conclude(self, report, sample: str) -> None:
        pass


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_losses_are_averaged_and_speeds_are_added():
    mean = mean_stepped([stepped(3, 1.0), stepped(3, 2.0), stepped(3, 3.0)])
    assert (mean.loss, mean.spread, mean.tok_s, mean.tokens) == (2.0, 1.0, 300.0, 9)


def test_the_best_so_far_is_best_for_all():
    assert mean_evaluated([evaluated(1.0), evaluated(3.0)]).best
    mean = mean_evaluated([evaluated(1.0), evaluated(3.0, best=False)])
    assert (mean.best, mean.evaluation.val_loss, mean.evaluation.above_floor) == (False, 2.0, None)


def test_a_mean_is_shown_with_its_spread_and_a_number_of_one_training_without():
    assert "loss 1.500 ± 0.707" in step_line(mean_stepped([stepped(3, 1.0), stepped(3, 2.0)]))
    assert "loss 1.000  " in step_line(stepped(3, 1.0))
    line = evaluation_line(mean_evaluated([evaluated(1.0), evaluated(2.0)]))
    assert "val loss 1.5000 ± 0.7071 nats per token" in line


def test_one_line_for_all_when_the_last_has_reported(recorder):
    show = Means(recorder, [0, 1])
    show(0, stepped(3, 1.0))
    assert recorder.shown == []
    show(1, stepped(3, 2.0))
    assert [(type(r), r.loss) for r in recorder.shown] == [(MeanStepped, 1.5)]
    show(0, evaluated(1.0))
    show(1, evaluated(2.0))
    assert isinstance(recorder.shown[-1], MeanEvaluated)


def test_who_ended_is_waited_for_no_longer(recorder):
    show = Means(recorder, [0, 1])
    show(0, stepped(3, 1.0))
    show(0, ended(steps=3))
    show(1, stepped(3, 2.0))
    show(1, stepped(4, 5.0))
    assert [(r.step, r.loss) for r in recorder.shown] == [(3, 1.5), (4, 5.0)]


def test_who_failed_is_named_and_waited_for_no_longer(recorder):
    show = Means(recorder, [0, 7])
    show(7, Failed(step=3, message="loss nan"))
    show(0, stepped(3, 1.0))
    message, report = recorder.shown
    assert (message, report.loss) == ("seed 7: loss nan", 1.0)


def test_the_result_is_a_mean_a_deviation_and_every_seed():
    first, *seeds = closing_lines({3: ended(9, 2.0), 4: ended(9, 2.5)})
    assert first.startswith("best val loss 2.2500 ± 0.3536 nats per token, 1.0000 bits per byte")
    assert seeds == ["seed 3  2.0000  9 steps  runs/x/2.0", "seed 4  2.5000  9 steps  runs/x/2.5"]


def test_without_a_validation_there_is_no_loss_to_show():
    none = replace(ended(0), evaluation=None)
    assert closing_lines({0: none, 1: none}) == ["no validation yet"]
