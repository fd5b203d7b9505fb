"""The folder runs/: a run by its name, the latest, a free name, and removal."""

from contextlib import suppress
from pathlib import Path

from mlx_attn import files
from mlx_attn.errors import RunError, did_you_mean
from mlx_attn.run_directory import Run, find_runs, is_run, open_run, remove_own_files

RUNS = Path("runs")
"""Where runs land unless told otherwise."""


def find_run(name: str | None = None, directory: Path = RUNS) -> Run:
    """Return a run by its directory or its name in `directory`.

    Without a name it is the latest whose training came to its end; if none did, the latest.
    """
    if name is not None:
        return open_run(run_path(name, directory))
    paths = find_runs(directory)
    if not paths:
        raise RunError(
            f"there is no run in {directory}: train one with 'mlx-attn train', or name one"
        )
    for path in paths:
        with suppress(RunError):  # a damaged run is not what somebody wants who names none
            if (run := open_run(path)).is_finished():
                return run
    return open_run(paths[0])


def run_path(name: str, directory: Path = RUNS) -> Path:
    """Return the directory of that name, here or in `directory`.

    Raises:
        RunError: No run has that name; the message suggests the nearest.
    """
    for path in (files.user_path(name), directory / name):
        if path.is_dir():
            return path
    names = run_names(directory)
    hint = did_you_mean(name, names) if names else ": train one with 'mlx-attn train'"
    raise RunError(f"there is no run '{name}', here or in {directory}{hint}")


def run_names(directory: Path = RUNS) -> list[str]:
    """Return the names of the runs in a directory, the latest first."""
    return [str(path.relative_to(directory)) for path in find_runs(directory)]


def free_name(directory: Path, name: str) -> Path:
    """Return a path that does not exist yet: name, name-2, name-3, ..."""
    path, number = directory / name, 2
    while path.exists():
        path, number = directory / f"{name}-{number}", number + 1
    return path


def remove_run(path: Path) -> list[Path]:
    """Remove a run's own files, and its directory if nothing else is in it.

    Returns:
        The files that are not the run's own and stay.

    Raises:
        RunError: It is not a run directory, another process holds it, or a file cannot be removed.
    """
    if not is_run(path):
        raise RunError(f"{path} is not a run directory, so it stays")
    with files.lock(path):
        remove_own_files(path)
        return sorted(path.iterdir())
