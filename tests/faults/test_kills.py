"""What is killed at random moments and begun again ends as if nothing had happened.

SIGKILL, SIGTERM and SIGINT reach a process of the command line after some seconds, or while it
writes one of its files; the command is then given again as a user would. All that it leaves must be
the same bits: weights, checkpoints, losses and samples of a training, verdicts of a comparison.

KILLS is how many each kind of work gets in the slow tests.
"""

import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_attn.arrays import load_arrays
from mlx_attn.run_directory import open_run

KILLS = int(os.environ.get("KILLS", 50))
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SIZES = "--context-length 16 --emb-dim 16 --n-heads 2 --n-layers 1 --batch-size 4 --warmup 2"
RECIPE = "--steps 30 --eval-every 10 --save-every 3 --log-every 5 --track 9 --quiet"
TIMES = {"seconds", "seconds_left", "tok_s", "peak_memory"}

CHILD = """
import os, signal, sys
import mlx_attn.cli.train, mlx_attn.training.show
import mlx_attn.cli.compare, mlx_attn.comparison.run, mlx_attn.comparison.report
from mlx_attn.cli import main

pipe, arguments = int(sys.argv[1]), sys.argv[2:]
del sys.argv[1:]  # which a comparison records, with the name of its folder

def note_writes(event, facts):
    writes = event == "open" and facts[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.rename", "os.remove", "os.mkdir"):
        os.write(pipe, b".")

log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(log, 1), os.dup2(log, 2)
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background ignores
try:
    os.write(pipe, b"!")
    sys.addaudithook(note_writes)
    main(arguments)
except SystemExit as end:
    sys.stderr.flush()
    os._exit(end.code or 0)
except KeyboardInterrupt:  # before the command has begun
    os._exit(130)
os._exit(99)
"""
"""Runs the command line after its imports, which take most of the time.

It tells through a pipe when it begins, and when it begins to open, rename or remove a file that it
writes: a signal that is sent then arrives while it does. Each command is a new process: a fork of
one that has MLX would be aborted on a Mac.
"""


@dataclass(frozen=True)
class Signal:
    """A signal, and when it is sent: after some seconds, or earlier at the n-th write."""

    number: int = 0
    seconds: float = 600.0
    write: int = -1

    @property
    def kind(self) -> str:
        return f"{signal.Signals(self.number).name} {'at a write' if self.write > 0 else ''}"


Run = Callable[[list[str], Signal], tuple[int, int]]


@pytest.fixture
def run(tmp_path) -> Run:
    """Runs a command and sends it a signal; gives its exit code and how often it wrote."""
    (tmp_path / "story.txt").write_text(
        "the red cat sat on a mat. an old dog sat by the door. " * 40
    )
    environment = {**os.environ, "MLX_ATTN_DATA_DIR": str(tmp_path / "data")}

    def start_and_signal(arguments: list[str], sent: Signal) -> tuple[int, int]:
        reading, writing = os.pipe()
        command = [sys.executable, "-c", CHILD, str(writing), *arguments]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, pass_fds=[writing]) as child:
            os.close(writing)
            os.read(reading, 1)  # it begins
            writes = count_writes(reading, sent)
            child.send_signal(sent.number)
        os.close(reading)
        return child.returncode, writes

    return start_and_signal


def count_writes(pipe: int, sent: Signal) -> int:
    """Wait until the signal is due, or the command has ended; returns how often it wrote."""
    end, writes = time.monotonic() + sent.seconds, 0
    while (left := end - time.monotonic()) > 0 and writes != sent.write:
        if not select.select([pipe], [], [], left)[0] or not os.read(pipe, 1):
            break
        writes += 1
    return writes


def learned(path: Path) -> dict[str, Any]:
    """All that a training leaves but what depends on the clock."""
    run = open_run(path)
    reports = [r for r in run.metrics() if r["event"] not in ("start", "end")]
    weights = load_arrays(run.weights)[0]
    checkpoint, facts = load_arrays(run.checkpoint)
    progress = {k: v for k, v in json.loads(facts["progress"]).items() if "seconds" not in k}
    return {
        "reports": [{k: v for k, v in report.items() if k not in TIMES} for report in reports],
        "samples": (path / "samples.txt").read_text(),
        "best": {name: np.array(array).tobytes() for name, array in weights.items()},
        "last": {name: np.array(array).tobytes() for name, array in checkpoint.items()},
        "progress": {k: v for k, v in progress.items() if k not in ("timed_steps", *TIMES)},
    }


def found_out(path: Path) -> dict[str, Any]:
    """The verdicts of a comparison, and all that its trainings learned."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k not in (*TIMES, "date")}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    files = [path / "comparison.json", *sorted(path.glob("trainings/*.json"))]
    found = {file.name: timeless(json.loads(file.read_text())) for file in files}
    del found["comparison.json"]["name"]  # that of the directory
    return found


@dataclass(frozen=True)
class Work:
    """A command, how it is given again, and what it leaves.

    Attributes:
        flags: What it begins with, without --out.
        left: All that it leaves in a directory, by name.
        config: The files any of which tells that there is something to resume; "" where the same
            command continues.
        prepares: Whether the text is made into tokens each time.
    """

    flags: str
    left: Callable[[Path], dict[str, Any]] = learned
    config: str = "config.json"
    prepares: bool = False

    def command(self, path: Path) -> list[str]:
        """What a user types: --resume where there is a run, else the same command again."""
        begun = self.config and any(file.stat().st_size for file in path.glob(self.config))
        flags = (
            f"train --resume {path.name} --quiet" if begun else f"{self.flags} --out {path.name}"
        )
        return flags.split()


TRAIN = f"train --data story.txt {SIZES} {RECIPE} --tokenizer"
COMPARE = f"compare --variants standard,no-query --data story.txt --tokenizer char {SIZES}"
KINDS = {
    "a training with dropout": Work(f"{TRAIN} char --drop-rate 0.2"),
    "a training that prepares its text": Work(f"{TRAIN} bpe --vocab-size 320", prepares=True),
    "a comparison": Work(
        f"{COMPARE} --steps 8 --budgets steps --no-tune --seeds 2 --no-noise --jobs 1 --quiet",
        found_out,
        "",
    ),
}


@dataclass
class Killer:
    """Kills one kind of work again and again, until it is done, and looks at what it left."""

    run: Run
    folder: Path
    work: Work
    draw: random.Random

    def __post_init__(self) -> None:
        self.ends: Counter[str] = Counter()
        start, path = time.perf_counter(), self.folder / "straight"
        code, self.writes = self.run(self.work.command(path), Signal())
        assert code == 0, self.log()
        self.span = time.perf_counter() - start
        self.expected = self.work.left(path)

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()[-2000:]

    def signals(self) -> Iterator[Signal]:
        """A few signals, half of them at writes."""
        for _ in range(self.draw.randrange(1, 8)):
            number = self.draw.choice(SIGNALS)
            if self.draw.random() < 0.5:
                yield Signal(number, write=self.draw.randrange(1, self.writes + 1))
            else:
                yield Signal(number, self.draw.uniform(0, self.span))

    def once(self) -> int:
        """Begin, kill a few times, and go on to the end; how many of the kills came before it."""
        path, kills = self.folder / "killed", 0
        if self.work.prepares:
            shutil.rmtree(self.folder / "data")
        for sent in self.signals():
            code, _ = self.run(self.work.command(path), sent)
            assert code in (0, 130, -sent.number), self.log()
            if not code:
                self.span *= 0.8  # so that most signals come before the end
                break
            self.span, kills = 1.1 * self.span, kills + 1
            self.ends[sent.kind] += 1
        assert self.run(self.work.command(path), Signal())[0] == 0, self.log()
        self.compare(path)
        shutil.rmtree(path)
        return kills

    def compare(self, path: Path) -> None:
        found = self.work.left(path)
        assert found.keys() == self.expected.keys()
        for what, value in self.expected.items():
            assert found[what] == value, f"{what}, killed by {dict(self.ends)}"
        assert not [*self.folder.rglob("*.tmp")]
        log = _IGNORED.sub("", (self.folder / "log.txt").read_text())
        assert "Traceback" not in log, self.log()


_IGNORED = re.compile(
    r"Exception ignored in: .*\n(?:Traceback .*\n(?:  .*\n)+)?KeyboardInterrupt.*\n?"
)
"""What Python itself prints if Ctrl-C comes while it calls back for a weak reference that ended."""


def check_kills(run: Run, folder: Path, kind: str, kills: int) -> None:
    killer, left = Killer(run, folder, KINDS[kind], random.Random(f"{kind} {kills}")), kills
    while left > 0:
        left -= killer.once()
    sys.stderr.write(f"{kind}: {killer.ends.total()} kills: {dict(killer.ends)}\n")


@pytest.mark.parametrize(("kind", "kills"), [*zip(KINDS, (3, 2, 2), strict=False)])
def test_what_was_killed_ends_in_the_same_bits(run, tmp_path, kind, kills):
    check_kills(run, tmp_path, kind, kills)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_so_does_what_was_killed_fifty_times(run, tmp_path, kind):
    check_kills(run, tmp_path, kind, KILLS)
