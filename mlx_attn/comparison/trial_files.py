"""Trials as files, for any engine that can run a command: a job array, GNU parallel, Ray, cron.

DIR/DIGEST.trial.json    what `mlx-attn trial` trains
DIR/DIGEST.record.json   the record that it writes
"""

import json
from collections.abc import Generator, Iterable
from pathlib import Path

from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.runner import Result, Runner
from mlx_attn.comparison.trial import Store, outcome_from
from mlx_attn.comparison.worker import UnfitWorker, order_for, train_order
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_text
from mlx_attn.records import Object, read_record

_TRIAL, _RECORD = ".trial.json", ".record.json"


class Exported(Exception):
    """Trials were written to files, and are not trained yet; `count` is how many."""

    def __init__(self, count: int):
        super().__init__(f"{count} trials were written")
        self.count = count


class ExportRunner(Runner):
    """Writes the missing trials to files, and reads the records that were added to the folder.

    Args:
        store: Where results are kept.
        folder: Of the files.
    """

    def __init__(self, store: Store, folder: Path):
        super().__init__(store)
        self.folder = folder

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Take up the records that there are, and return the trials that the store lacks."""
        missing = super().missing(trials)
        for trial in missing:
            # A record that came back from wherever the trial was trained.
            record = self.folder / f"{trial.digest}{_RECORD}"
            if record.exists():
                self.store[trial] = outcome_from(read_record(record), trial, str(record))
                for file in (record, self.folder / f"{trial.digest}{_TRIAL}"):
                    file.unlink(missing_ok=True)
        return [trial for trial in missing if trial not in self.store]

    def __call__(self, trials: Iterable[Trial]) -> Generator[Result, None, None]:
        """Write the missing trials.

        Raises:
            Exported: There were some.
        """
        missing = self.missing(trials)
        for trial in missing:
            text = json.dumps(order_for(trial), indent=1, sort_keys=True) + "\n"
            write_text(self.folder / f"{trial.digest}{_TRIAL}", text)
        if missing:
            # The rest of the comparison needs these results, so it ends here.
            raise Exported(len(missing))
        # A generator even so: the records were taken up by `missing`.
        yield from ()


def train_file(path: Path) -> Path:
    """Train the trial in a file, and return the file of its record, in the same folder.

    Plugins have to be loaded: a file imports none.

    Raises:
        ConfigError: The file was not written by `--export-trials`.
        RunError: It cannot be read, or the training failed.
        UnfitWorker: This machine would train another trial, or computes wrong results.
    """
    if not path.name.endswith(_TRIAL):
        raise ConfigError(f"{path}: a trial is a file NAME{_TRIAL} of compare --export-trials")
    record = path.with_name(path.name.removesuffix(_TRIAL) + _RECORD)
    # A repeated command does not train twice.
    if not record.exists():
        answer: Object = train_order(read_record(path), load=False)
        if reason := answer.get("unfit"):
            raise UnfitWorker(f"{path}: {reason}")
        if reason := answer.get("failed"):
            raise RunError(f"{path}: {reason}")
        write_text(record, json.dumps(answer, indent=1, sort_keys=True) + "\n")
    return record
