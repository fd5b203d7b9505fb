"""Finished trainings on disk: one small file each, named by what was trained.

A training that is there is never done again, so an interrupted comparison goes on where it was, and
another seed or arm costs only its own trainings.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.lab.compare.cell import Cell
from mlx_attn.lab.compare.result import Training, training_from


@dataclass(frozen=True, slots=True)
class Diverged:
    """A training that ended with a loss that is no number.

    Attributes:
        message: What happened, at which step.
    """

    message: str


Outcome = Training | Diverged


class Store:
    """The finished trainings in a folder.

    Args:
        folder: Made when the first training is kept.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def __contains__(self, cell: Cell) -> bool:
        return self._path(cell).exists()

    def __getitem__(self, cell: Cell) -> Outcome:
        """What a training came to.

        Raises:
            RunError: Its file is missing or damaged.
        """
        path = self._path(cell)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if "diverged" in record:
                return Diverged(record["diverged"])
            return training_from({**record["training"], "lr_scale": cell.lr_scale})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}: not a finished training ({error}); delete the file to train it again"
            ) from error

    def __setitem__(self, cell: Cell, outcome: Outcome) -> None:
        """Keep what a training came to.

        Raises:
            RunError: The file cannot be written.
        """
        result = (
            {"diverged": outcome.message}
            if isinstance(outcome, Diverged)
            else {"training": asdict(outcome)}
        )
        record = {"arm": cell.arm, "settings": dict(cell.settings), **result}
        self.keep(cell, json.dumps(record, indent=1, sort_keys=True) + "\n")

    def text(self, cell: Cell) -> str:
        """The record of a finished training, as another store may keep it.

        Raises:
            RunError: Its file is missing or damaged.
        """
        self[cell]  # refuses a damaged one
        return self._path(cell).read_text(encoding="utf-8")

    def keep(self, cell: Cell, text: str) -> None:
        """Keep what another store gave.

        Raises:
            RunError: The file cannot be written.
        """
        write_text(self._path(cell), text)

    def _path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.digest}.json"
