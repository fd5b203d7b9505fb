"""Comparisons on the workers of a Dask scheduler, which listen on the loopback interface."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlx_attn.comparison import runner as runners
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.stages import Finished
from mlx_attn.comparison.trial import Store, loss_of
from mlx_attn.errors import RunError

pytest.importorskip("distributed")

PATIENCE = 300.0


class Cluster:
    """A scheduler and workers, as processes of their own."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self._folder, self._file = folder, folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--scheduler-file", str(self._file), "--port=0")
        self.workers: list[subprocess.Popen[bytes]] = []
        until = time.monotonic() + PATIENCE
        # For a moment the file is there and empty.
        while not (self._file.exists() and self._file.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        self.address = json.loads(self._file.read_text())["address"]

    def add(self) -> None:
        """Start a worker."""
        usual = ("--no-nanny", "--nthreads=1", "--death-timeout=20", "--local-directory=.")
        self.workers.append(self._start("worker", self.address, *usual))

    def close(self) -> None:
        """Kill all processes."""
        for process in (self.scheduler, *self.workers):
            process.kill()
            process.wait()

    def _start(self, what: str, *options: str) -> "subprocess.Popen[bytes]":
        run = f"from distributed.cli.dask_{what} import main; main()"
        command = [sys.executable, "-c", run, "--host=127.0.0.1", "--no-dashboard", *options]
        with (self._folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)


@pytest.fixture
def cluster(tmp_path, story) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.close()


@pytest.fixture
def runner(tmp_path, cluster) -> Runner:
    return Runner(Store(tmp_path / "there"), on=cluster.address)


def trained(
    run: ComparisonRun, after: Callable[[int], Any] = lambda count: None
) -> dict[str, float]:
    """The losses of a comparison's trainings, by digest; calls `after` each with their number."""
    losses: dict[str, float] = {}
    for event in run:
        if isinstance(event, Finished):
            losses[event.trial.digest] = loss_of(event.outcome)
            after(len(losses))
    return losses


def test_workers_train_as_here_and_nothing_twice(cluster, runner, brief, tmp_path, in_this_process):
    cluster.add()
    there = trained(ComparisonRun(brief, runner))
    assert there == trained(ComparisonRun(brief, Runner(Store(tmp_path / "here"), 1)))
    assert len(there) == 4
    assert trained(ComparisonRun(brief, runner)) == {}


def test_nobody_listening_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(runners, "CONNECT", 0.3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(RunError, match=rf"no scheduler answers at {address}: start one with"):
        Runner(Store(tmp_path), on=address)


@pytest.mark.slow
def test_a_lost_scheduler_is_one_line_and_the_command_continues(cluster, runner, brief, tmp_path):
    cluster.add()
    with pytest.raises(
        RunError, match=rf"the scheduler at {cluster.address} is gone; finished trainings are kept"
    ):
        trained(ComparisonRun(brief, runner), lambda count: cluster.scheduler.kill())
    kept = len(list(runner.store.folder.iterdir()))
    assert kept
    assert len(trained(ComparisonRun(brief, Runner(runner.store, 1)))) == 4 - kept


@pytest.mark.slow
def test_a_killed_worker_changes_no_number(cluster, runner, brief, tmp_path):
    cluster.add()
    longer = replace(brief, seeds=4)

    def kill(count: int) -> None:
        if count == 2:
            cluster.workers[0].kill()
            cluster.add()

    there = trained(ComparisonRun(longer, runner), kill)
    assert there == trained(ComparisonRun(longer, Runner(Store(tmp_path / "here"), 1)))


@pytest.mark.slow
def test_whoever_stops_listening_frees_the_worker(cluster, runner, protocol, brief):
    cluster.add()
    # A worker that is there begins with the first trial.
    assert len(trained(ComparisonRun(replace(brief, seeds=1), runner))) == 2
    endless = protocol("merged", "no-query, steps=1000000", seeds=1, tune=False, delta=0.01)

    def press_ctrl_c(count: int) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        trained(ComparisonRun(endless, runner), press_ctrl_c)
    assert len(list(runner.store.folder.iterdir())) == 3
    assert trained(ComparisonRun(brief, runner))
