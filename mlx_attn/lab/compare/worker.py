"""A process that does one training and keeps the result: `python -m mlx_attn.lab.compare.worker`.

Reads the training as JSON from standard input and writes nothing but the store's file. It ends by
itself when the process that started it is gone.
"""

import json
import os
import sys
from pathlib import Path

from mlx_attn.lab.compare.cell import Cell, train_cell
from mlx_attn.lab.compare.store import Diverged, Store
from mlx_attn.training import trainer


def work(order: str) -> None:
    """Do the training that a JSON object describes.

    Args:
        order: Has `folder`, the store's, `parent`, a process id, and the fields of a `Cell`.
    """
    fields = json.loads(order)
    store, parent = Store(Path(fields.pop("folder"))), fields.pop("parent")
    cell = Cell(**fields)
    try:
        training = train_cell(cell, lambda: os.getppid() != parent)
    except trainer.Diverged as error:
        store[cell] = Diverged(str(error))
        return
    if training:
        store[cell] = training


if __name__ == "__main__":
    work(sys.stdin.read())
