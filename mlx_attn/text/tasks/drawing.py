"""Draws the documents of a task.

The same seed gives the same documents on every platform and version: all that is used of a random
generator is `random()`, uniform numbers of 53 bits.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from mlx_attn.errors import ConfigError, nearest
from mlx_attn.text.tasks.copying import repeated_strings
from mlx_attn.text.tasks.documents import Documents
from mlx_attn.text.tasks.markov import random_chains
from mlx_attn.text.tasks.nearest import points_and_queries
from mlx_attn.text.tasks.offsets import spelled_numbers
from mlx_attn.text.tasks.recall import key_value_pairs, permuted_key_value_pairs
from mlx_attn.text.tasks.table import TASKS

_STREAM = 0x7461736B  # keeps these random numbers apart from others drawn with the same seed
_GENERATORS: dict[str, Callable[..., Documents]] = {
    "copy": repeated_strings,
    "recall": key_value_pairs,
    "permuted-recall": permuted_key_value_pairs,
    "offsets": spelled_numbers,
    "markov": random_chains,
    "nearest": points_and_queries,
}


def draw(
    task: str, count: int, seed: int = 0, split: Literal["train", "val"] = "train", **sizes: Any
) -> Documents:
    """Documents of a task.

    Args:
        task: A name in `TASKS`.
        count: How many documents.
        seed: Not negative.
        split: The two splits of a seed come from different random streams.
        sizes: Sizes other than those of `Task.sizes`.

    Raises:
        ConfigError: There is no such task, split or size, or a number is out of range.
    """
    if task not in TASKS:
        raise ConfigError(f"unknown task '{task}'{nearest(task, TASKS)}")
    if split not in ("train", "val"):
        raise ConfigError(f"tasks have no split {split!r}; choose train or val")
    if count < 1 or seed < 0:
        raise ConfigError(f"count={count} must be at least 1, and seed={seed} at least 0")
    if unknown := set(sizes) - set(TASKS[task].sizes):
        raise ConfigError(f"{task} has no size {unknown.pop()!r}; it has {[*TASKS[task].sizes]}")
    bits = np.random.Philox(key=np.array([2 * seed + (split == "val"), _STREAM], np.uint64))
    return _GENERATORS[task](np.random.Generator(bits), count, **{**TASKS[task].sizes, **sizes})
