"""A run directory: everything one training leaves behind, readable by every other command.

    config.json         settings, versions, digest of the text
    metrics.jsonl       one report a line
    samples.txt         what the model wrote at each validation
    tokenizer.*         the tokenizer
    model.safetensors   the weights with the lowest validation loss
    checkpoint/         the last state: weights, optimizer, random state, step
    track/              weights at tracked steps, of a run that started from another

Seeds that were trained at once lie side by side in one directory: NAME/seed-0, NAME/seed-1, ...
Files are replaced in one step; a directory is never overwritten without being told to. `run` is one
such directory, `places` makes and finds them.
"""

from mlx_attn.runs.places import (
    RUNS,
    check_free,
    check_no_run,
    create_run,
    find_replicas,
    find_run,
    find_runs,
    free_name,
    open_run,
    run_names,
    seed_place,
)
from mlx_attn.runs.run import Run

__all__ = [
    "RUNS",
    "Run",
    "check_free",
    "check_no_run",
    "create_run",
    "find_replicas",
    "find_run",
    "find_runs",
    "free_name",
    "open_run",
    "run_names",
    "seed_place",
]
