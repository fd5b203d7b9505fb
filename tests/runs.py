"""Runs that tests make."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_attn.run_directory import Run, new_run


def create_run(path: Path, settings: Mapping[str, Any], overwrite=False, tokenizer=None) -> Run:
    """Return the run directory that `new_run` makes, which no process then holds."""
    with new_run(path, settings, overwrite, tokenizer) as run:
        return run
