import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Ended, Evaluated, Failed, Stepped
from mlx_attn.training.show import (
    Display,
    SeedMean,
    closing_lines_of_seeds,
    evaluation_line,
    mean_evaluated,
    mean_stepped,
    step_line,
)


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


def test_losses_are_averaged_and_speeds_are_added():
    mean, spread = mean_stepped([stepped(3, 1.0), stepped(3, 2.0), stepped(3, 3.0)])
    assert (mean.loss, spread, mean.tok_s, mean.tokens) == (2.0, 1.0, 300.0, 9)


def test_the_best_so_far_is_best_for_all():
    assert mean_evaluated([evaluated(1.0), evaluated(3.0)])[0].best
    mean, _ = mean_evaluated([evaluated(1.0), evaluated(3.0, best=False)])
    assert (mean.best, mean.evaluation.val_loss, mean.evaluation.above_floor) == (False, 2.0, None)


def test_a_mean_is_shown_with_its_spread_and_a_number_of_one_training_without():
    mean, spread = mean_stepped([stepped(3, 1.0), stepped(3, 2.0)])
    assert "loss 1.500 ± 0.707" in step_line(mean, spread=spread)
    assert "loss 1.000  " in step_line(stepped(3, 1.0))
    line = evaluation_line(*mean_evaluated([evaluated(1.0), evaluated(2.0)]))
    assert "val loss 1.5000 ± 0.7071 nats per token" in line


def test_one_event_for_all_when_the_last_is_there():
    mean = SeedMean([0, 1])
    assert mean.add(0, stepped(3, 1.0)) == (None, None)
    event, spread = mean.add(1, stepped(3, 2.0))
    assert isinstance(event, Stepped)
    assert (event.loss, spread) == (1.5, pytest.approx(0.5**0.5))
    mean.add(0, evaluated(1.0))
    assert isinstance(mean.add(1, evaluated(2.0))[0], Evaluated)


def losses(mean: SeedMean, *events) -> list[tuple[int, float]]:
    shown = [mean.add(seed, event)[0] for seed, event in events]
    return [(event.step, event.loss) for event in shown if isinstance(event, Stepped)]


def test_who_ended_is_waited_for_no_longer():
    events = [(0, stepped(3, 1.0)), (0, ended(3)), (1, stepped(3, 2.0)), (1, stepped(4, 5.0))]
    assert losses(SeedMean([0, 1]), *events) == [(3, 1.5), (4, 5.0)]


def test_who_failed_is_waited_for_no_longer():
    failed = Failed(step=3, message="loss nan")
    assert losses(SeedMean([0, 7]), (7, failed), (0, stepped(3, 1.0))) == [(3, 1.0)]


def shown(mode, *events) -> str:
    console = Console(file=io.StringIO(), highlight=False)
    with Display(console, mode, [0, 7]) as display:
        for seed, event in events:
            display(event, seed)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_for_all_and_who_failed_is_named():
    events = [(0, stepped(3, 1.0)), (7, stepped(3, 2.0)), (7, Failed(step=4, message="loss nan"))]
    assert "loss 1.500 ± 0.707" in shown("plain", *events)
    assert shown("plain", *events).splitlines()[-1] == "seed 7: loss nan"


def test_in_json_every_event_has_its_seed(capsys):
    assert shown("json", (7, stepped(3, 2.0))) == ""
    assert json.loads(capsys.readouterr().out)["seed"] == 7


def test_the_result_is_a_mean_a_deviation_and_every_seed():
    first, *seeds = closing_lines_of_seeds({3: ended(9, 2.0), 4: ended(9, 2.5)})
    assert first.startswith("best val loss 2.2500 ± 0.3536 nats per token, 1.0000 bits per byte")
    assert seeds == ["seed 3  2.0000  9 steps  runs/x/2.0", "seed 4  2.5000  9 steps  runs/x/2.5"]


def test_without_a_validation_there_is_no_loss_to_show():
    none = replace(ended(0), evaluation=None)
    assert closing_lines_of_seeds({0: none, 1: none}) == ["no validation yet"]
