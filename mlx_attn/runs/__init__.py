"""A run directory: everything one training leaves behind, readable by every other command.

    config.json         settings, versions, digest of the text
    metrics.jsonl       one report a line
    samples.txt         what the model wrote at each validation
    tokenizer.*         the tokenizer
    model.safetensors   the weights with the lowest validation loss
    checkpoint/         the last state: weights, optimizer, random state, step
    track/              weights at tracked steps, of a run that started from another

Files are replaced in one step; a directory is never overwritten without being told to. `run` is one
such directory, `places` makes and finds them.
"""

from mlx_attn.runs.places import (
    RUNS,
    check_free,
    create_run,
    find_run,
    find_runs,
    free_name,
    open_run,
)
from mlx_attn.runs.run import Run

__all__ = [
    "RUNS",
    "Run",
    "check_free",
    "create_run",
    "find_run",
    "find_runs",
    "free_name",
    "open_run",
]
