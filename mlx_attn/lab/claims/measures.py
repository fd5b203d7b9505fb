"""What a contest compares: one number of every training."""

from collections.abc import Callable
from dataclasses import dataclass

from mlx_attn.errors import RunError
from mlx_attn.lab.compare.result import Training


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a finished training, larger being worse.

    Attributes:
        of: Reads it.
        unit: What it is, for people.
        sign: 1, or -1 where larger is meant to read as better.
    """

    of: Callable[[Training], float]
    unit: str
    sign: int = 1


def _accuracy(training: Training) -> float:
    if training.accuracy is None:
        raise RunError("an ordinary text has no accuracy: measure the loss")
    return training.accuracy


MEASURES: dict[str, Measure] = {
    "loss": Measure(lambda t: t.val_loss, "nats per token"),
    "score rank": Measure(
        lambda t: t.ranks[-1].scores,
        "effective rank of S_h (a positive difference is a lower rank)",
        -1,
    ),
    "accuracy": Measure(_accuracy, "share of answers right (a positive difference is fewer)", -1),
}
"""Higher rank and accuracy read as better."""
