"""Train the missing trials of a study with the runner of comparisons, most important first."""

import platform
import sysconfig
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from math import inf
from pathlib import Path

from mlx_attn.answers.schedule import ArmPlan, wanted_trials
from mlx_attn.answers.study import Study, World
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.trial import Outcome
from mlx_attn.comparison.worker import place_of_text
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.text.downloads import data_directory
from mlx_attn.text.sources import read_source

_BATCH = 8
"""Trials per process that are started before the plans are read again."""


def module_text(modules: Sequence[str]) -> str:
    """Return the joined source of modules of Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    for name in modules:
        file = library / f"{name}.py"
        file = file if file.exists() else library / name / "__init__.py"
        if not file.exists():
            raise RunError(f"{file}: this Python has no source of its module {name}")
        texts.append(file.read_text(encoding="utf-8"))
    return "\n".join(texts)


def text_of(world: World) -> str:
    """Return the value of `--data` for a world's text; write modules to one file first."""
    if not world.modules:
        return world.settings["data"]
    path, text = place_of_text(world.text), module_text(world.modules)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
    return str(path)


def check_texts(study: Study, worlds: Iterable[str]) -> None:
    """Raise a RunError if a world's text on this machine is not the registered one."""
    for name in dict.fromkeys(worlds):
        world = study.world(name)
        if not world.text:
            continue
        path = text_of(world)
        digest = read_source(path, data_directory()).digest
        if digest != world.text:
            place_of_text(world.text).unlink(missing_ok=True)
            python = f" (Python {platform.python_version()} is another)" if world.modules else ""
            raise RunError(
                f"{world.settings['data']}: the text has the digest {digest}, and {world.text} is "
                f"registered: its trainings would not be comparable{python}"
            )


def train_wanted(
    study: Study,
    plans: Callable[[], Iterable[ArmPlan]],
    runner: Runner,
    seconds: float = 0.0,
) -> Generator[tuple[Trial, Outcome, int], None, None]:
    """Train the missing trials, several at once; yield each after its record is written.

    Closing the generator stops the running trials; finished ones are on disk.

    Args:
        study: The study with the texts to check.
        plans: Returns the plans for the current records, most important first.
        runner: Runs the trials, with the records as its store.
        seconds: No trial starts after this time; 0 sets no limit.

    Yields:
        A trial, its outcome, and the number of missing trials known so far.
    """
    runner.until = time.monotonic() + seconds if seconds else inf
    check_texts(study, (trial.world for trial in wanted_trials(plans())))
    while time.monotonic() < runner.until and (left := wanted_trials(plans())):
        for done, ended in enumerate(runner(left[: _BATCH * runner.size]), 1):
            yield *ended, len(left) - done
