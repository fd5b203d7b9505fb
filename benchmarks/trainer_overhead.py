"""Measure the overhead of the trainer over its bare step: batches, schedule, reports.

Interleaves two ways to run the same step, A B B A: in a bare loop over fixed windows, and through
`mlx_attn.training.loop.train`. Prints the tokens per second of both and their ratio as JSON.

    python benchmarks/trainer_overhead.py --preset tiny --steps 20 --rounds 5
"""

import argparse
import json
import statistics
import time

# Before MLX, because it loads the BLAS.
import mlx_attn  # noqa: F401

# isort: split
import mlx.core as mx

from mlx_attn.training.config import resolve
from mlx_attn.training.events import Stepped
from mlx_attn.training.loop import train
from mlx_attn.training.trainer import Trainer


def bare(trainer: Trainer, steps: int) -> float:
    """Return the seconds of the bare step, on windows chosen in advance."""
    starts = trainer.sampler.starts(0, 0)
    mx.eval(starts)
    began = time.perf_counter()
    for _ in range(steps):
        mx.eval(trainer.step(starts), trainer.step.state)
    return time.perf_counter() - began


def through_the_loop(trainer: Trainer, steps: int) -> float:
    """Return the seconds of the same number of steps in the training loop, with reports."""
    trainer.steps = trainer.progress.step + steps
    began = time.perf_counter()
    for report in train(trainer):
        if isinstance(report, Stepped) and report.step >= trainer.steps:
            break
    return time.perf_counter() - began


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--data", default="tales")
    parser.add_argument("--steps", type=int, default=20, help="steps a turn")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    settings = resolve({"preset": given.preset, "data": given.data, "eval_every": 0})
    trainer = Trainer(settings, settings.corpus())
    bare(trainer, 3)
    seconds: dict[str, list[float]] = {"bare": [], "trainer": []}
    for _ in range(given.rounds):
        for name in ("bare", "trainer", "trainer", "bare"):
            measure = bare if name == "bare" else through_the_loop
            seconds[name].append(measure(trainer, given.steps))
    tokens = given.steps * trainer.tokens_per_step
    speeds = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    ratio = speeds["trainer"] / speeds["bare"]
    print(json.dumps({"preset": given.preset, "tok_s": speeds, "trainer / bare": ratio}))  # noqa: T201


if __name__ == "__main__":
    main()
