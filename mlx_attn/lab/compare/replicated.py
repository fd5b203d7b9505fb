"""Does several trainings of one form in this process at once, as replicas.

Their losses are those of separate trainings to rounding. Their speed is not, because a step is all
of theirs: what is recorded is the speed of one of them alone, and of time and memory its share.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mlx_attn.lab.compare.cell import Cell
from mlx_attn.lab.compare.recording import Recording, unchanged_corpus
from mlx_attn.lab.compare.result import Training
from mlx_attn.lab.compare.store import Diverged, Outcome
from mlx_attn.training.loop import never
from mlx_attn.training.replicas import Together, replicas_of, step_seconds, train_replicas
from mlx_attn.training.reports import Failed, Stepped
from mlx_attn.training.settings import resolve


def train_cells(
    cells: Sequence[Cell], should_stop: Callable[[], bool] = never
) -> Iterator[tuple[Cell, Outcome]]:
    """Do trainings that differ in seeds and learning rates alone; none when told to stop.

    Raises:
        RunError: The text cannot be read, or has changed.
        ConfigError: The settings cannot work, or differ in more.
    """
    settings = [resolve(cell.settings) for cell in cells]
    corpus = unchanged_corpus(cells[0], settings[0])
    # Before the models are made, because it uses up random numbers.
    seconds = step_seconds(settings[0], corpus)
    replicas = replicas_of(settings, corpus)
    pairs = zip(cells, replicas, strict=True)
    recordings = {replica: Recording(cell, replica, corpus) for cell, replica in pairs}
    for replica, report in train_replicas(replicas, Together(), should_stop):
        recording = recordings[replica]
        if isinstance(report, Failed):
            yield recording.cell, Diverged(report.message)
        elif isinstance(report, Stepped):
            replica.settle()
        recording.take(report)
    for recording in recordings.values():
        if training := recording.training():
            tok_s = recording.trainer.tokens_per_step / seconds
            yield recording.cell, share_of(training, len(cells), tok_s)


def share_of(training: Training, count: int, tok_s: float) -> Training:
    """What one of so many trainings had of the time and memory that all took together.

    Args:
        training: With the time and memory of all.
        count: How many there were.
        tok_s: Tokens per second of one alone; by them go the times of its curve.
    """
    return replace(
        training,
        tok_s=tok_s,
        seconds=training.seconds / count,
        peak_memory=training.peak_memory // count,
        curve=tuple(replace(point, seconds=point.tokens / tok_s) for point in training.curve),
    )
