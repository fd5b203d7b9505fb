"""A training that is killed at random moments and resumed ends as if nothing had happened.

SIGKILL, SIGTERM and SIGINT reach a process of the command line that trains with dropout; it is then
resumed as a user would. Weights, checkpoint, losses and samples must be the same bits.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_attn.arrays import load_arrays
from mlx_attn.runs import open_run

KILLS = int(os.environ.get("KILLS", 200))
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SIZES = "--context-length 16 --emb-dim 16 --n-heads 2 --n-layers 1 --batch-size 4 --drop-rate 0.2"
RECIPE = "--steps 30 --eval-every 10 --save-every 3 --log-every 5 --warmup 2 --track 9 --quiet"
TRAIN = f"train --data story.txt --tokenizer char {SIZES} {RECIPE}".split()
TIMES = {"seconds", "seconds_left", "tok_s", "peak_memory"}

SERVER = """
import json, os, select, sys
import mlx_attn.cli.train, mlx_attn.training.show, mlx_attn.training.replicas
from mlx_attn.cli import main
for line in sys.stdin:
    arguments, delay, number = json.loads(line)
    child = os.fork()
    if not child:
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        try:
            main(arguments)
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(end.code or 0)
        except KeyboardInterrupt:  # before the command has begun
            os._exit(130)
        os._exit(99)
    select.select([], [], [], delay)
    os.kill(child, number)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Starts the command line as often as asked; it is imported once, which is most of its time."""

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path) -> Iterator[Run]:
    """Runs a command and sends it a signal after some seconds; gives its exit code."""
    (tmp_path / "story.txt").write_text(
        "the red cat sat on a mat. an old dog sat by the door. " * 40
    )
    environment = {**os.environ, "MLX_ATTN_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as server:

        def ask(*arguments: str, delay: float = 0.0, number: int = 0) -> int:
            assert server.stdin
            assert server.stdout
            server.stdin.write(json.dumps([arguments, delay, number]) + "\n")
            server.stdin.flush()
            return int(server.stdout.readline())

        yield ask
        server.kill()


def what_it_learned(path: Path) -> dict[str, Any]:
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


def begin_or_resume(path: Path) -> list[str]:
    """What a user types: --resume where there is a run, else the same command again."""
    config = path / "config.json"
    if config.exists() and config.stat().st_size:
        return ["train", "--resume", path.name, "--quiet"]
    return [*TRAIN, "--out", path.name]


def check_kills(run: Run, folder: Path, kills: int) -> None:
    start = time.perf_counter()
    assert run(*TRAIN, "--out", "straight") == 0
    span = time.perf_counter() - start
    expected = what_it_learned(folder / "straight")
    draw, ends, path = random.Random(kills), Counter(), folder / "killed"
    while kills > 0:
        for _ in range(draw.randrange(1, 5)):
            number, delay = draw.choice(SIGNALS), draw.uniform(0, span)
            end = run(*begin_or_resume(path), delay=delay, number=number)
            span *= 1.1 if end else 0.8  # so that most signals come before the end
            kills -= end != 0
            ends[end] += 1
        assert run(*begin_or_resume(path)) == 0, (folder / "log.txt").read_text()[-2000:]
        found = what_it_learned(path)
        for what, value in expected.items():
            assert found[what] == value, f"{what}, {kills} kills before the end: {ends}"
        assert not [*path.rglob("*.tmp")]
        log = (folder / "log.txt").read_text()
        assert "Traceback" not in log, log[-2000:]
        shutil.rmtree(path)
    sys.stderr.write(f"{ends.total()} signals, by exit code: {dict(ends)}\n")
    assert {*ends} <= {0, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}


def test_a_killed_training_ends_in_the_same_bits(run, tmp_path):
    check_kills(run, tmp_path, 4)


@pytest.mark.slow
def test_so_does_one_that_is_killed_two_hundred_times(run, tmp_path):
    check_kills(run, tmp_path, KILLS)


COMPARE = (
    f"compare --variants standard,no-query --data story.txt --tokenizer char {SIZES} --steps 8 "
    "--warmup 2 --budgets steps --no-tune --seeds 2 --no-noise --jobs 1"
).split()


def what_it_found(folder: Path) -> Any:
    """The verdicts of a comparison, and all that its trainings learned."""
    found = json.loads((folder / "comparison.json").read_text())["budgets"]
    for arm in (arm for budget in found for arm in budget["arms"]):
        for training in arm["trainings"]:
            training["curve"] = [point["val_loss"] for point in training["curve"]]
            for key in TIMES & training.keys():
                del training[key]
    return found


@pytest.mark.slow
def test_a_comparison_that_is_killed_comes_to_the_same_verdict(run, tmp_path):
    start = time.perf_counter()
    assert run(*COMPARE, "--out", "straight") == 0
    span = time.perf_counter() - start
    draw, ends = random.Random(1), Counter()
    for _ in range(8):
        number, delay = draw.choice(SIGNALS), draw.uniform(0, span / 2)
        ends[run(*COMPARE, "--out", "killed", delay=delay, number=number)] += 1
    assert run(*COMPARE, "--out", "killed") == 0, (tmp_path / "log.txt").read_text()[-2000:]
    assert what_it_found(tmp_path / "killed") == what_it_found(tmp_path / "straight")
    sys.stderr.write(f"{ends.total()} signals, by exit code: {dict(ends)}\n")
    assert "Traceback" not in (tmp_path / "log.txt").read_text()
