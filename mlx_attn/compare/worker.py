"""A process that does trainings and keeps the results: `python -m mlx_attn.compare.worker`.

Reads the trainings as JSON from standard input and writes nothing but the store's files. It ends by
itself when the process that started it is gone.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mlx_attn.compare.plan import Trial
from mlx_attn.compare.runner import Diverged, Outcome, Store, train_together, train_trial
from mlx_attn.training import trainer


def work(order: str) -> None:
    """Do the trainings that a JSON object describes; several are done together.

    Args:
        order: Has `folder`, the store's, `parent`, a process id, and `cells`, the fields of each.
    """
    fields = json.loads(order)
    store, parent = Store(Path(fields["folder"])), fields["parent"]
    cells = [Trial(**cell) for cell in fields["cells"]]
    train = train_together if len(cells) > 1 else train_alone
    for cell, outcome in train(cells, lambda: os.getppid() != parent):
        store[cell] = outcome


def train_alone(
    cells: Sequence[Trial], should_stop: Callable[[], bool]
) -> Iterator[tuple[Trial, Outcome]]:
    """Do a training by itself."""
    (cell,) = cells
    try:
        training = train_trial(cell, should_stop)
    except trainer.Diverged as error:
        yield cell, Diverged(str(error))
    else:
        if training:
            yield cell, training


if __name__ == "__main__":
    work(sys.stdin.read())
