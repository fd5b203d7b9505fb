"""Check that gradients are sent during the backward pass, with a simulated network.

    python benchmarks/overlap.py [--preset macbook] [--steps 8] [--rounds 3]

Runs one process on the GPU path, with one core for computation. Instead of sending a message, a
separate queue sorts numbers on another core for the same time: a quarter, a half and all of the
time of a step. MLX evaluates the same operations as with ranks, in the same order and on the same
queues. Measures the seconds per step without sending, with sending after the backward pass, with
sending during it as `train` does, and with everything evaluated at once in MLX's own order. Prints
the medians of the rounds as one Markdown table.
"""

import os

# Set before MLX is imported: the GPU path, and one core for computation.
os.environ |= {"MLX_ATTN_CODE_PATH": "gpu", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import statistics
import sys
import time
from typing import Any

import mlx_attn  # noqa: F401

# isort: split
import mlx.core as mx
from mlx.utils import tree_unflatten

from mlx_attn.arrays import named_arrays
from mlx_attn.machine.messages import by_message, sending_order
from mlx_attn.text.corpus import prepare
from mlx_attn.training.config import resolve
from mlx_attn.training.distributed import Distributed
from mlx_attn.training.trainer import Trainer

WARM_UP = 2  # steps that are not measured
SORTED = 2**18  # numbers
SHARES = (0.25, 0.5, 1.0)  # sending time as a fraction of a step's time
WAYS = ("none", "after", "beside", "at once")


class StandIn(Distributed):
    """A single rank whose messages take time.

    Args:
        way: One of `WAYS`.
        numbers: How many numbers to sort for every byte.
    """

    def __init__(self, way: str, numbers: float):
        self.way, self.numbers, self._stream = way, numbers, mx.new_stream(mx.cpu)

    def average(self, tree: Any) -> Any:
        """Return the same arrays after the time that sending them would take."""
        if self.way == "none":
            return tree
        with mx.stream(self._stream):
            if self.way != "after":
                return by_message(tree, self._sent)
            arrays = named_arrays(tree)
            return tree_unflatten([*zip(arrays, self._sent([*arrays.values()]), strict=True)])

    def sending_order(self, averaged: Any) -> list[mx.array]:
        """Return the order, as in a group of processes."""
        return sending_order(averaged) if self.way == "beside" else []

    def _sent(self, message: list[mx.array]) -> list[mx.array]:
        count = int(self.numbers * sum(array.nbytes for array in message))
        joined = mx.concatenate([array.reshape(-1) for array in message])
        ordered = mx.sort(mx.concatenate([_numbers(count), joined[:1]]))
        # `mx.depends` would wait in the queue of the gradients.
        return [array + 0 * ordered[0] for array in message]


def _numbers(count: int) -> mx.array:
    return mx.random.uniform(shape=(count,), key=mx.random.key(0))


def trainer_of(preset: str, rank: StandIn) -> Trainer:
    """Return the trainer of a preset on characters."""
    settings = resolve({"preset": preset, "compile": "off"})
    return Trainer(settings, prepare("tiny-shakespeare", "char", 65), rank)


def seconds(preset: str, way: str, numbers: float, steps: int) -> float:
    """Return the median seconds of a step."""
    trainer, times = trainer_of(preset, StandIn(way, numbers)), list[float]()
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        mx.eval(trainer.launch_step(), trainer.step.state)
        times.append(time.perf_counter() - began)
    return statistics.median(times[WARM_UP:])


def sorting() -> float:
    """Return the seconds that sorting takes per number."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        mx.eval(mx.sort(_numbers(SORTED)))
        times.append(time.perf_counter() - began)
    return statistics.median(times) / SORTED


def main() -> None:
    """Measure in interleaved rounds, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="macbook")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    alone = seconds(given.preset, "none", 0.0, given.steps)
    model = trainer_of(given.preset, StandIn("none", 0.0)).model
    held = sum(array.nbytes for array in named_arrays(model.trainable_parameters()).values())
    print_row("sending takes", *WAYS)
    print_row(*["---"] * (1 + len(WAYS)))
    for share in SHARES:
        numbers = share * alone / sorting() / held
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(given.rounds):
            for way in WAYS:
                found[way].append(seconds(given.preset, way, numbers, given.steps))
        medians = [f"{statistics.median(times):.3f} s" for times in found.values()]
        print_row(f"{share * alone:.3f} s", *medians)


def print_row(*cells: str) -> None:
    """Print a line of the table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
