"""Where runs are: making a new one without harm to what is there, and finding those there are."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_attn.errors import RunError, nearest
from mlx_attn.files import unwritable
from mlx_attn.runs.run import CONFIG, FILES, Run, parsed_object, read_text

RUNS = Path("runs")
"""Where runs land unless told otherwise."""

SEED = "seed-"
"""How the directories of seeds that were trained at once begin, inside of one that holds them."""


def create_run(path: Path, settings: Mapping[str, Any], overwrite: bool = False) -> Run:
    """Make a run directory and write its config.json.

    Raises:
        RunError: The directory exists and is not to be overwritten, or cannot be written.
    """
    check_free(path, overwrite)
    if overwrite and path.exists():
        _clear(path)
    _claim(path)
    return Run(path, settings).with_settings(settings)


def check_free(path: Path, overwrite: bool = False) -> None:
    """Refuse a place where a new run must not go.

    Raises:
        RunError: Something is there, and it is no run or not to be overwritten.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise _taken(path)
    if not (path / CONFIG).is_file():
        raise RunError(f"{path} is not a run directory, so --overwrite leaves it alone")
    open_run(path)


def check_no_run(path: Path) -> None:
    """Refuse a run's own directory as one that is to hold other runs.

    Raises:
        RunError: It is a run.
    """
    if (path / CONFIG).exists():
        raise RunError(f"{path} is a run: --name or --out names another directory for several")


def open_run(path: Path) -> Run:
    """The run in a directory.

    Raises:
        RunError: There is none, or its config.json is damaged.
    """
    file = path / CONFIG
    if not file.is_file():
        near = ", ".join(str(run) for run in (find_runs(path) or find_runs(path.parent))[:3])
        raise RunError(f"{path} is not a run directory{f' (there are: {near})' if near else ''}")
    settings = parsed_object(read_text(file), str(file))
    tables = (settings.get(key) for key in ("model", "training", "text"))
    if not all(isinstance(table, dict) for table in tables):
        raise RunError(f"{file}: not the settings of a run")
    return Run(path, settings)


def find_run(name: str | None = None, directory: Path = RUNS) -> Run:
    """A run by what people call it.

    Args:
        name: Its directory, or its name in `directory`; None is the latest there.
        directory: Where runs land.

    Raises:
        RunError: There is no such run, or its config.json is damaged.
    """
    found = find_runs(directory)
    if name is None and not found:
        raise RunError(
            f"there is no run in {directory}: train one with 'mlx-attn train', or name one"
        )
    if name is None:
        return open_run(found[0])
    for path in (Path(name).expanduser(), directory / name):
        if path.is_dir():
            return open_run(path)
    names = run_names(directory)
    hint = nearest(name, names) if names else ": train one with 'mlx-attn train'"
    raise RunError(f"there is no run '{name}', here or in {directory}{hint}")


def find_runs(directory: Path = RUNS) -> list[Path]:
    """The run directories in a directory, those of seeds included, the latest first."""
    found = [*directory.glob(f"*/{CONFIG}"), *directory.glob(f"*/{SEED}*/{CONFIG}")]
    return [file.parent for file in sorted(found, key=lambda f: f.stat().st_mtime, reverse=True)]


def run_names(directory: Path = RUNS) -> list[str]:
    """What the runs in a directory are called, the latest first."""
    return [str(path.relative_to(directory)) for path in find_runs(directory)]


def seed_place(path: Path, seed: int) -> Path:
    """Where the run of one seed goes, of several that were trained at once."""
    return path / f"{SEED}{seed}"


def find_replicas(name: str, directory: Path = RUNS) -> list[Run]:
    """The runs that were trained at once, in the order of their seeds; none where that is no such.

    Args:
        name: The directory that holds them, or its name in `directory`.
        directory: Where runs land.

    Raises:
        RunError: A config.json is damaged.
    """
    for path in (Path(name).expanduser(), directory / name):
        places = [file.parent for file in path.glob(f"{SEED}*/{CONFIG}")]
        seeds = {int(seed): place for place in places if (seed := _seed_of(place)).isdigit()}
        if seeds and not (path / CONFIG).exists():
            return [open_run(place) for _, place in sorted(seeds.items())]
    return []


def _seed_of(place: Path) -> str:
    return place.name.removeprefix(SEED)


def free_name(directory: Path, name: str) -> Path:
    """A path that does not exist yet: name, name-2, name-3, ..."""
    path, number = directory / name, 2
    while path.exists():
        path, number = directory / f"{name}-{number}", number + 1
    return path


def _claim(path: Path) -> None:
    """Make the directory ours, so that two trainings that start together cannot share one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG).open("x").close()
    except FileExistsError as error:
        raise _taken(path) from error
    except OSError as error:
        raise unwritable(path, error) from error


def _taken(path: Path) -> RunError:
    return RunError(
        f"{path} exists: --resume {path} goes on with it, --overwrite replaces it, "
        "--out names another directory"
    )


def _clear(path: Path) -> None:
    """Remove a run's own files; whatever else lies in the directory is not ours to delete."""
    try:
        for pattern in FILES:
            for file in path.glob(pattern):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
    except OSError as error:
        raise unwritable(path, error) from error
