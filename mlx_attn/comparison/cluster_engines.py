"""Trials on other machines: a Dask cluster, whose workers may join and leave, or jobs of SLURM.

Dask carries trials and results, and knows which workers live. Which worker trains which trial is
decided by the runner, so every task is bound to one worker. SLURM chooses the machines itself.
"""

import logging
import shlex
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_attn.comparison import worker as worker_side
from mlx_attn.comparison.executors import KEPT, Engine, LocalEngine, Worker
from mlx_attn.comparison.plan import Trial
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.machine.device import DEVICE, chosen_device
from mlx_attn.machine.streams import concurrent_trainings
from mlx_attn.records import Object
from mlx_attn.text.downloads import data_directory
from mlx_attn.text.sources import read_source

CONNECT = 10.0  # seconds that a scheduler has to answer
INSPECTION = 120.0  # seconds that the first workers are waited for while they are inspected
JOBS = 64  # jobs of SLURM that wait or run at once, unless `--jobs` says how many
LARGEST_TEXT = 2**28  # bytes of a text that is sent to a worker; a longer one has to be there
_LOOK = 0.5  # seconds between two questions which workers there are


@dataclass(slots=True)
class _Peer:
    """A connected process of a Dask cluster, and what its inspection found."""

    # Bound to this one: only the runner decides which kind of machine trains a seed.
    executor: Any
    inspection: Future[dict[str, str]] | None = None  # while it runs
    worker: Worker | None = None  # once it may train
    unfit: str = ""  # why it may not


class DaskEngine(Engine):
    """The workers of a Dask scheduler.

    Args:
        client: Connected to the scheduler.
        name: Of the scheduler, for messages.
        resources: Closed with the engine.
    """

    patience = _LOOK

    def __init__(self, client: Any, name: str, resources: ExitStack):
        self._client, self._name, self._resources = client, name, resources
        self._orders: list[Object] = []  # one for each text and set of plugins
        self._run = ""
        self._peers: dict[str, _Peer] = {}  # by address
        self._looked, self._addresses = -_LOOK, frozenset[str]()
        self._told_of_none = False
        self.dashboard = client.dashboard_link or ""

    @property
    def size(self) -> int:
        return max(1, len(self._fit()) or len(self._there()))

    @contextmanager
    def session(self, trials: Sequence[Trial]) -> Iterator[None]:
        """Inspect all workers for these trials; end those that still run when it is left."""
        # One order for each text and set of plugins is enough to inspect a worker.
        orders = {(t.text, *(p["sha256"] for p in t.plugins)): t for t in trials}
        if not {*orders} <= {
            (o["text"], *(p["sha256"] for p in o["plugins"])) for o in self._orders
        }:
            self._orders = [worker_side.order_for(trial) for trial in orders.values()]
            self._peers = {name: peer for name, peer in self._peers.items() if peer.unfit}
        self._run = uuid.uuid4().hex
        until = time.monotonic() + INSPECTION
        # Wait for the first inspections, so that the first trials go to all workers that are there.
        while self._there() and time.monotonic() < until:
            self.workers()
            if not any(peer.inspection for peer in self._peers.values()):
                break
            time.sleep(_LOOK / 10)
        try:
            yield
        finally:
            with suppress(Exception):  # the scheduler may be gone
                fit = [worker.name for worker in self._fit() if worker.name in self._there()]
                self._client.run(worker_side.cancel, self._run, workers=fit, on_error="ignore")

    def workers(self) -> Sequence[Worker]:
        """Return the workers that passed their inspection; inspect new ones."""
        there = self._there()
        # Forget workers that left: one that returns under the same name is inspected again.
        self._peers = {name: peer for name, peer in self._peers.items() if name in there}
        for name in there - {*self._peers}:
            executor = self._client.get_executor(
                pure=False, workers=[name], allow_other_workers=False
            )
            self._peers[name] = _Peer(executor)
            self._inspect(self._peers[name])
        for name, peer in self._peers.items():
            if peer.inspection and peer.inspection.done():
                self._judge(name, peer)
        if not there and not self._told_of_none:
            start = f"dask worker {self._name} --nthreads 1"
            self.notice(f"{self._name} has no worker yet; on each machine: {start}")
        self._told_of_none = not there
        reasons = [peer.unfit for peer in self._peers.values() if peer.unfit]
        if reasons and len(reasons) == len(self._peers):
            raise RunError(f"no worker of {self._name} can train this: {reasons[0]}; {KEPT}")
        return self._fit()

    def submit(self, worker: Worker, order: Object) -> Future[Object]:
        return self._peers[worker.name].executor.submit(_train_task, order, self._run)

    def is_loss(self, error: BaseException) -> bool:
        """Return whether a worker is gone, rather than the scheduler, which is a RunError."""
        # Look now: if the scheduler is gone too, `_there` raises the RunError that ends the run.
        self._looked = -_LOOK
        self._there()
        return super().is_loss(error) or type(error).__name__ == "KilledWorker"

    def leave_out(self, worker: Worker, reason: str) -> None:
        if peer := self._peers.get(worker.name):
            peer.worker, peer.unfit = None, reason
        self.notice(f"{worker.name} is left out: {reason}")

    def close(self) -> None:
        with suppress(Exception):
            self._resources.close()

    def _there(self) -> frozenset[str]:
        """Return the addresses of all workers; RunError if the scheduler is gone."""
        if time.monotonic() - self._looked >= _LOOK:
            try:
                self._addresses = frozenset(self._client.nthreads())
            except (OSError, TimeoutError, RuntimeError, AttributeError) as error:
                raise RunError(f"the scheduler {self._name} is gone; {KEPT}") from error
            self._looked = time.monotonic()
        return self._addresses

    def _fit(self) -> list[Worker]:
        return [peer.worker for peer in self._peers.values() if peer.worker]

    def _inspect(self, peer: _Peer, text: str | None = None) -> None:
        peer.inspection = peer.executor.submit(worker_side.inspect_worker, self._orders, text)

    def _judge(self, name: str, peer: _Peer) -> None:
        """Take a worker, send it the text, or leave it out."""
        assert peer.inspection
        try:
            answer = peer.inspection.result()
        except Exception as error:  # an error of the worker's Python, which may lack mlx_attn
            answer = {"unfit": f"{type(error).__name__}: {error}".splitlines()[0]}
        peer.inspection = None
        if "kind" in answer:
            peer.worker = Worker(name, answer["kind"])
        elif "lacks" in answer and (text := _text_of(self._orders[0])) is not None:
            self._inspect(peer, text)
        else:
            self.leave_out(Worker(name), answer.get("unfit") or answer.get("lacks") or "no answer")


def _train_task(order: Object, run: str) -> Object:
    """Train on a worker, until it loses its scheduler."""
    distributed = _distributed()
    own = distributed.get_worker()
    # A worker that lost its scheduler must not train for nobody.
    connected = distributed.Status.running, distributed.Status.paused
    return worker_side.train_order(order, run, should_stop=lambda: own.status not in connected)


def _text_of(order: Object) -> str | None:
    """Return the text of an order as this machine has it; None if it is generated, or too long."""
    text = read_source(str(order["settings"]["data"]), data_directory()).text
    return text if 0 < len(text.encode()) <= LARGEST_TEXT else None


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ConfigError("--on needs Dask: pip install 'mlx_attn[cluster]'") from error
    # Its log is not for people who train: real problems arrive as errors.
    for name in [
        name for name in logging.root.manager.loggerDict if name.startswith("distributed")
    ]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def _client(address: Any, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other versions: those that matter are inspected
            return _distributed().Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise RunError(
            f"no scheduler answers at {name}: start one with 'dask scheduler', and workers with "
            "'dask worker ADDRESS --nthreads 1'"
        ) from error


def _own_address(host: str) -> str:
    """Return the address of this machine that a host can reach."""
    answer = subprocess.run(["ssh", "-G", host], capture_output=True, text=True, check=False)
    lines = [line.split(maxsplit=1) for line in answer.stdout.splitlines()]
    name = next((line[1] for line in lines if line[0] == "hostname"), host.rpartition("@")[2])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # UDP sends nothing here; it only asks the system for a route, whose end is our address.
            probe.connect((name, 9))
            return probe.getsockname()[0]
    except OSError as error:
        raise RunError(f"--on ssh: there is no way to {host} ({error})") from error


def _start_cluster(hosts: Sequence[str], jobs: int) -> DaskEngine:
    """Start a scheduler here, and workers on hosts that `ssh` knows; see `_start_worker`."""
    distributed, resources = _distributed(), ExitStack()
    own = _own_address(hosts[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another dashboard has the usual port
        cluster: Any = resources.enter_context(
            distributed.LocalCluster(
                n_workers=0, host=own, dashboard_address=f"{own}:8787", silence_logs=50
            )
        )
    client = resources.enter_context(_client(cluster, "this machine"))
    for host in hosts:
        worker = resources.enter_context(_start_worker(host, cluster.scheduler_address, jobs))
        resources.callback(worker.terminate)  # before the context waits for its end
    return DaskEngine(client, cluster.scheduler_address, resources)


def _start_worker(host: str, scheduler: str, jobs: int) -> "subprocess.Popen[str]":
    processes = str(jobs or concurrent_trainings(-1))  # -1: one for every core
    chosen = ["env", f"{DEVICE}={chosen_device()}"] if chosen_device() else []
    command = [*chosen, sys.executable, "-m", "distributed.cli.dask_worker", scheduler]
    command += ["--nthreads", "1", "--nworkers", processes]
    # Workers end by themselves a minute after their scheduler has gone.
    command += ["--no-dashboard", "--death-timeout", "60"]
    silent: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return subprocess.Popen(["ssh", "-o", "BatchMode=yes", host, shlex.join(command)], **silent)


class SlurmEngine(Engine):
    """Jobs of SLURM, or of another executor of submitit, each of which trains one trial.

    Jobs go to a partition whose machines should be of one kind; "" is SLURM's default. So many wait
    or run at once; 0 is `JOBS`.
    """

    patience = 5.0

    def __init__(self, partition: str, jobs: int, executor: Any = None):
        self._count = jobs or JOBS
        self._executor = executor or _slurm(partition)
        self._submitted: dict[Future[Object], Any] = {}

    @property
    def size(self) -> int:
        return self._count

    @contextmanager
    def session(self, trials: Sequence[Trial]) -> Iterator[None]:
        try:
            yield
        finally:
            for future, job in self._submitted.items():
                job.cancel(check=False)
                future.cancel()
            self._submitted.clear()

    def workers(self) -> Sequence[Worker]:
        """Return a worker for each job that may wait or run; complete the futures of ended ones."""
        for future, job in list(self._submitted.items()):
            if not job.done():
                continue
            del self._submitted[future]
            try:
                future.set_result(job.result())
            except Exception:
                # The runner takes a TimeoutError for a lost worker and repeats the trial.
                future.set_exception(TimeoutError(f"job {job.job_id} ended without a result"))
        # No kinds: SLURM chooses the machine, so a partition should have only one kind.
        return [Worker(f"job {number}") for number in range(self._count)]

    def submit(self, worker: Worker, order: Object) -> Future[Object]:
        # A worker is a place in the queue, so any job will do.
        future: Future[Object] = Future()
        self._submitted[future] = self._executor.submit(worker_side.train_order, order)
        return future


def _slurm(partition: str) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("--on slurm needs submitit: pip install 'mlx_attn[slurm]'") from error
    try:
        jobs = submitit.AutoExecutor(folder=Path("runs") / "slurm", cluster="slurm")
    except RuntimeError as error:
        raise RunError(f"--on slurm: {error}") from error
    more = {"slurm_partition": partition} if partition else {}
    jobs.update_parameters(name="mlx-attn", cpus_per_task=1, **more)
    return jobs


def open_engine(address: str, jobs: int) -> Engine:
    """Return the engine at an address: "" is this machine.

    Raises:
        ConfigError: The engine is unknown, or its library is not installed.
        RunError: Nobody answers there.
    """
    if not address:
        return LocalEngine(jobs)
    scheme, _, rest = address.partition(":")
    hosts = [host for host in rest.split(",") if host]
    if scheme == "dask" and rest.startswith("//") and rest.strip("/"):
        resources, name = ExitStack(), f"tcp:{rest}"
        return DaskEngine(resources.enter_context(_client(name, name)), name, resources)
    if scheme == "ssh" and hosts:
        return _start_cluster(hosts, jobs)
    if scheme == "slurm":
        return SlurmEngine(rest, jobs)
    raise ConfigError(f"--on {address}: use one of dask://HOST:PORT, ssh:HOST,HOST, slurm")
