"""Comparisons on a Dask cluster: workers that come, go, fail and are killed.

Scheduler and workers listen on the loopback interface; workers end when their scheduler does.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlx_attn.comparison import cluster_engines
from mlx_attn.comparison.cluster_engines import open_engine
from mlx_attn.comparison.result import Comparison
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import Finished, Runner
from mlx_attn.comparison.trial import Store
from mlx_attn.errors import ConfigError, RunError

distributed = pytest.importorskip("distributed")

PATIENCE = 60.0
WRONG = (
    "from mlx_attn.verify import checks; checks.QUICK = (checks.Check('sums', lambda r: 1 / 0),)"
)


class Cluster:
    """A scheduler and workers, as processes of their own."""

    def __init__(self, folder: Path):
        self._folder, self._file = folder, folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--scheduler-file", str(self._file), "--port=0")
        self.workers: list[subprocess.Popen[bytes]] = []
        until = time.monotonic() + PATIENCE
        while not self._file.exists() and time.monotonic() < until:
            time.sleep(0.05)
        address = json.loads(self._file.read_text())["address"]
        self.address = address.replace("tcp:", "dask:")

    def add(self, code: str = "", **variables: str) -> "subprocess.Popen[bytes]":
        """Start a worker, which runs some code first."""
        usual = ("--no-nanny", "--nthreads=1", "--death-timeout=20", "--local-directory=.")
        file = ("--scheduler-file", str(self._file))
        self.workers.append(self._start("worker", *file, *usual, code=code, variables=variables))
        return self.workers[-1]

    def wait_for(self, count: int) -> None:
        """Return when that many workers are connected."""
        with distributed.Client(self.address.replace("dask:", "tcp:")) as client:
            client.wait_for_workers(count, timeout=PATIENCE)

    def close(self) -> None:
        """Kill all processes."""
        for process in (self.scheduler, *self.workers):
            process.kill()
            process.wait()

    def _start(
        self, what: str, *options: str, code: str = "", variables: dict[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        run = f"import sys; from distributed.cli.dask_{what} import main; {code}\nmain()"
        command = [sys.executable, "-c", run, "--host=127.0.0.1", "--no-dashboard", *options]
        with (self._folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                env=os.environ | (variables or {}),
            )


@pytest.fixture
def cluster(tmp_path, story) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.close()


@pytest.fixture
def brief(brief):
    """Eight trainings of a tenth of a second."""
    return replace(brief, seeds=4)


@pytest.fixture
def compare(tmp_path) -> Callable[..., tuple[Comparison, list[str]]]:
    """Compares on a cluster; gives the result and the lines about workers."""

    def run(protocol, address, on_event=lambda event: None, folder="there"):
        lines: list[str] = []
        with closing(open_engine(address, 0)) as engine:
            engine.notice = lines.append
            run = ComparisonRun(protocol, Runner(Store(tmp_path / folder), engine=engine))
            last = None
            for last in run:
                on_event(last)
        assert isinstance(last, Comparison)
        return last, lines

    return run


def numbers(comparison: Comparison) -> Any:
    """All of comparison.json but times, speed and memory."""
    timed = ("seconds", "tok_s", "peak_memory")

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k not in timed}
        return [timeless(v) for v in value] if isinstance(value, list | tuple) else value

    return timeless(comparison.as_dict())


def test_a_cluster_ends_like_processes_here_and_finished_trainings_are_not_repeated(
    cluster, brief, compare, tmp_path, in_this_process
):
    cluster.add()
    cluster.add()
    there, _ = compare(brief, cluster.address)
    here = list(ComparisonRun(brief, Runner(Store(tmp_path / "here"), 1)))[-1]
    assert isinstance(here, Comparison)
    assert numbers(there) == numbers(here)
    events: list[Any] = []
    again, _ = compare(brief, cluster.address, events.append)
    assert numbers(again) == numbers(here)
    assert not [event for event in events if isinstance(event, Finished)]


@pytest.mark.parametrize("address", ["ray://host", "dask:", "dask://", "ssh:", "mac1"])
def test_an_unknown_engine_is_one_line(address):
    with pytest.raises(ConfigError, match=r"use one of dask://HOST:PORT, ssh:HOST,HOST, slurm"):
        open_engine(address, 0)


def test_nobody_listening_is_one_line(monkeypatch):
    monkeypatch.setattr(cluster_engines, "CONNECT", 0.3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(RunError, match=rf"no scheduler answers at tcp://127.0.0.1:{port}"):
        open_engine(f"dask://127.0.0.1:{port}", 0)


@pytest.mark.slow
def test_a_worker_whose_verify_fails_is_left_out(cluster, brief, compare):
    cluster.add(WRONG)
    with pytest.raises(RunError, match=r"no worker .* can train this: verify finds wrong results"):
        compare(brief, cluster.address)
    cluster.add()
    cluster.wait_for(2)
    _, lines = compare(brief, cluster.address)
    assert [line for line in lines if "is left out: verify finds wrong results" in line]


@pytest.mark.slow
def test_a_worker_that_joins_late_is_sent_the_text_that_it_lacks_and_trains(
    cluster, brief, shared, compare, story, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shared["data"] = story.name  # which is in this process's folder, not in the workers'
    other = tmp_path / "other machine"
    threading.Timer(4.0, lambda: cluster.add(MLX_ATTN_DATA_DIR=str(other))).start()
    _, lines = compare(brief, cluster.address)
    assert "has no worker yet" in lines[0]
    assert [file.read_text() for file in (other / "sent").iterdir()] == [story.read_text()]


@pytest.mark.slow
def test_the_scheduler_s_end_is_one_line_ends_its_workers_and_the_same_command_continues(
    cluster, brief, compare, tmp_path, story
):
    process = cluster.add()
    finished: list[str] = []

    def kill_after_three(event):
        if isinstance(event, Finished):
            finished.append(event.trial.digest)
            if len(finished) == 3:
                cluster.scheduler.kill()

    with pytest.raises(RunError, match=r"the scheduler .* is gone; finished trainings are kept"):
        compare(brief, cluster.address, kill_after_three)
    process.wait(PATIENCE)
    (tmp_path / "second").mkdir()
    second, again = Cluster(tmp_path / "second"), list[str]()
    try:
        second.add()
        compare(
            brief,
            second.address,
            lambda e: again.append(e.trial.digest) if isinstance(e, Finished) else None,
        )
    finally:
        second.close()
    assert not set(again) & set(finished)
    assert len(again) + len(finished) == 8


@pytest.mark.slow
def test_killed_workers_change_no_number(cluster, protocol, compare, tmp_path, in_this_process):
    """Kills a worker now and then, 20 times, and starts another one each time."""
    plan = protocol(seeds=30, budgets=("steps", "params"), scales=(1.0,))
    draw, kills = random.Random(0), [0]
    for _ in range(3):
        cluster.add()

    def maybe_kill(event):
        if isinstance(event, Finished) and kills[0] < 20 and draw.random() < 0.4:
            alive = [worker for worker in cluster.workers if worker.poll() is None]
            draw.choice(alive).send_signal(signal.SIGKILL)
            kills[0] += 1
            cluster.add()

    there, _ = compare(plan, cluster.address, maybe_kill)
    here = list(ComparisonRun(plan, Runner(Store(tmp_path / "here"), 1)))[-1]
    assert isinstance(here, Comparison)
    assert kills[0] == 20
    assert numbers(there) == numbers(here)


@pytest.mark.slow
def test_whoever_stops_listening_keeps_what_is_finished_and_frees_the_workers(
    cluster, brief, compare, tmp_path
):
    cluster.add()
    first, store = iter(range(2)), Store(tmp_path / "there")

    def press_ctrl_c(event):
        if isinstance(event, Finished) and next(first):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(brief, cluster.address, press_ctrl_c)
    assert len(list(store.folder.iterdir())) == 2
    endless = replace(brief, shared={**brief.shared, "steps": 1_000_000})
    with closing(open_engine(cluster.address, 0)) as engine:
        threading.Timer(3.0, signal.raise_signal, (signal.SIGINT,)).start()
        with pytest.raises(KeyboardInterrupt):
            list(ComparisonRun(endless, Runner(Store(tmp_path / "long"), engine=engine)))
    compare(brief, cluster.address)


FAKE_SSH = """#!/bin/sh
[ "$1" = -G ] && echo "hostname 127.0.0.1" && exit
shift 3
exec sh -c "$*"
"""


@pytest.mark.parametrize(
    ("chosen", "begins"), [("cpu", "env MLX_ATTN_DEVICE=cpu /"), ("", "/")], ids=["cpu", "none"]
)
def test_workers_on_another_machine_compute_on_the_chosen_device(monkeypatch, chosen, begins):
    commands: list[list[str]] = []
    monkeypatch.setenv("MLX_ATTN_DEVICE", chosen)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    cluster_engines._start_worker("mac", "tcp://here:8786", 1)
    assert commands[0][-2] == "mac"
    assert commands[0][-1].startswith(begins)


@pytest.mark.slow
def test_ssh_starts_workers_and_ends_them(brief, compare, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(FAKE_SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with closing(open_engine("ssh:one,two", 1)) as engine:
        events = list(ComparisonRun(brief, Runner(Store(tmp_path / "t"), engine=engine)))
        assert engine.size == 2
        assert engine.dashboard.startswith("http://127.0.0.1:")
    assert isinstance(events[-1], Comparison)
