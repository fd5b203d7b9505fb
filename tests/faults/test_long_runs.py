"""A training of many steps takes no more at its end than at its beginning: memory, files, handles.

STEPS is their number, by default 100,000, which take minutes:
`pytest -n0 -m slow tests/faults/test_long_runs.py`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STEPS = int(os.environ.get("STEPS", 100_000))
REPORTS = 100
SIZES = "--context-length 8 --emb-dim 8 --n-heads 2 --n-layers 1 --batch-size 2 --drop-rate 0.1"
FOLLOWED = ("log", "eval", "save", "track")

UNDER_A_CLOCK_THAT_JUMPS = """
import random, sys, time
time.time = lambda: random.uniform(0, 4e9)
time.time_ns = lambda: int(1e9 * time.time())
from mlx_attn.cli import main
main(sys.argv[1:])
"""
"""The command line while somebody sets the clock of the day between any two looks at it."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="/proc is Linux's"),
]


@dataclass(frozen=True)
class Held:
    """What a process holds when it reports a step."""

    memory: int
    handles: int
    report: dict[str, Any]


def held_by(process: subprocess.Popen[str], report: dict[str, Any]) -> Held:
    """The bytes of memory, and the open files, of a process that has just reported."""
    place = Path("/proc", str(process.pid))
    pages = int((place / "statm").read_text().split()[1])
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), len([*(place / "fd").iterdir()]), report)


def followed(folder: Path) -> Iterator[Held]:
    """Train in a folder, and look at the process at every report of steps."""
    every = max(1, STEPS // REPORTS)
    recipe = [f"--steps={STEPS}", *(f"--{what}-every={every}" for what in FOLLOWED[:3])]
    command = f"train --data story.txt --tokenizer char {SIZES} --track {every} --json -o run"
    with subprocess.Popen(
        [sys.executable, "-c", UNDER_A_CLOCK_THAT_JUMPS, *command.split(), *recipe],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if (report := json.loads(line))["event"] == "step":
                yield held_by(process, report)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def long_run(tmp_path_factory) -> tuple[Path, list[Held]]:
    """A long training, and what it held at each of its reports."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "story.txt").write_text("the cat sat on the mat. a dog ran to the door. " * 20)
    return folder, [*followed(folder)]


def test_memory_stays_as_it_is_after_the_first_hundredth(long_run):
    first, *later = (each.memory for each in long_run[1])
    sys.stderr.write(f"{first / 1e6:.1f} MB, then {min(later) / 1e6:.1f}-{max(later) / 1e6:.1f}\n")
    assert max(later) <= 1.05 * first


def test_no_file_stays_open(long_run):
    handles = [each.handles for each in long_run[1]]  # one that is being written may be among them
    assert min(handles[-10:]) <= min(handles[:10])


def test_files_grow_with_the_reports_alone(long_run):
    run = long_run[0] / "run"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3 * REPORTS + 3
    assert (run / "samples.txt").read_text().count("--- step ") == REPORTS
    assert [file.name for file in (run / "checkpoint").iterdir()] == ["last.safetensors"]
    assert not [*run.rglob("*.tmp")]


def test_the_clock_of_the_day_is_not_asked(long_run):
    reports = [each.report for each in long_run[1]]
    assert reports[-1]["step"] == STEPS
    seconds = [report["seconds"] for report in reports]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] <= seconds[-1] < 86_400
