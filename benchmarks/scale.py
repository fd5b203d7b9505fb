"""Simulate comparisons on many workers, and measure the cost of Dask per trial.

    python benchmarks/scale.py [--trials 10000] [--seconds 60] [--cost 0.01]
                               [--hours-to-failure 2] [--seed 0]
    python benchmarks/scale.py --measure 1000

The simulation has three kinds of machine, of speed 1, 0.6 and 0.35: a half, a third and a sixth of
the workers. Each seed has eight trials. They all run on the kind of machine that took the first, as
`mlx_attn.comparison.runner` decides. The work of a trial is lognormal with a spread of a third.
Workers fail at random, lose their trial, and return after five minutes. One process hands out the
trials and stores their records, one at a time, in `--cost` seconds each. Efficiency is the work of
finished trials divided by the speed of all workers times the total time. Everything is a function
of `--seed`. Prints one Markdown table.

--measure N sends N empty trials through the runner and a Dask scheduler with two workers on this
machine, including records and files. The time per trial is the value for `--cost`.
"""

import argparse
import heapq
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ((1.0, 1 / 2), (0.6, 1 / 3), (0.35, 1 / 6))
"""The speed of each kind of machine, and its share of the workers."""

OF_A_SEED = 8
SPREAD = 1 / 3
REJOIN = 300.0
"""Seconds until a lost worker returns."""

COLUMNS = (
    *("workers", "hours", "efficiency", "without failures", "lost trials", "repeated work"),
    "handing out",
)


@dataclass
class Farm:
    """Workers that train, fail and join again.

    Attributes:
        speeds: Each worker's kind, as an index into `KINDS`.
        cost: Seconds per trial of the process that hands out trials.
        to_failure: Mean seconds between two failures of one worker; infinite for no failures.
    """

    kinds: list[int]
    cost: float
    to_failure: float
    draw: np.random.Generator
    free_at: float = 0.0  # time when the process that hands out trials is free
    waited: float = 0.0  # worker seconds spent waiting for that process
    lost: int = 0
    wasted: float = 0.0
    ends: list[float] = field(default_factory=list)

    def run(self, work: np.ndarray) -> float:
        """Train trials of this much work; return the time when the last one ended."""
        queue, of_kind = deque(_seeds(work)), [deque[float]() for _ in KINDS]
        idle = [(0.0, number) for number in range(len(self.kinds))]
        left, pending = len(work), list[tuple[float, int]]()
        heapq.heapify(idle)
        while left:
            now, number = heapq.heappop(idle)
            kind = self.kinds[number]
            if not of_kind[kind] and queue:
                of_kind[kind].extend(queue.popleft())
            if not of_kind[kind]:
                pending.append((now, number))
                if not idle:
                    break
                continue
            left -= self._train(of_kind[kind], now, number, idle)
            while pending and of_kind[kind]:  # idle workers can take the lost trial
                _, other = pending.pop()
                heapq.heappush(idle, (now, other))
        return max(self.ends)

    def _train(
        self, trials: "deque[float]", now: float, number: int, idle: list[tuple[float, int]]
    ) -> bool:
        """Have a worker train the next trial; return whether it ends."""
        begins = max(now, self.free_at) + self.cost
        self.free_at = begins
        self.waited += begins - now
        amount = trials.popleft()
        ends = begins + amount / KINDS[self.kinds[number]][0]
        failure = begins + self.draw.exponential(self.to_failure)
        if failure < ends:
            self.lost += 1
            self.wasted += (failure - begins) * KINDS[self.kinds[number]][0]
            trials.appendleft(amount)
            heapq.heappush(idle, (failure + REJOIN, number))
            return False
        self.ends.append(ends)
        heapq.heappush(idle, (ends, number))
        return True


def _seeds(work: np.ndarray) -> list[list[float]]:
    return [[*map(float, work[i : i + OF_A_SEED])] for i in range(0, len(work), OF_A_SEED)]


def simulate(
    workers: int, trials: int, seconds: float, cost: float, hours_to_failure: float, seed: int
) -> dict[str, float]:
    """Return the results of one farm on the same trials."""
    draw = np.random.default_rng([seed, workers])
    shift = -(SPREAD**2) / 2  # so that the mean is 1
    work = seconds * np.random.default_rng(seed).lognormal(shift, SPREAD, trials)
    bounds = np.cumsum([share for _, share in KINDS]) * workers
    kinds = [int(np.searchsorted(bounds, number + 0.5)) for number in range(workers)]
    farm = Farm(kinds, cost, hours_to_failure * 3600, draw)
    took = farm.run(work)
    speed = sum(KINDS[kind][0] for kind in kinds)
    return {
        "hours": took / 3600,
        "efficiency": work.sum() / (speed * took),
        "lost": farm.lost,
        "wasted": farm.wasted / work.sum(),
        "handing out": farm.waited / (workers * took),
    }


def table(given: argparse.Namespace) -> str:
    """Return a row for each number of workers."""
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    for workers in given.workers:
        shared = (workers, given.trials, given.seconds, given.cost)
        one = simulate(*shared, given.hours_to_failure, given.seed)
        calm = simulate(*shared, float("inf"), given.seed)
        lines.append(
            [
                *(str(workers), f"{one['hours']:.2f}", f"{one['efficiency']:.3f}"),
                *(f"{calm['efficiency']:.3f}", str(int(one["lost"])), f"{one['wasted']:.3f}"),
                f"{one['handing out']:.4f}",
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def measure(count: int) -> tuple[float, float]:
    """Return the elapsed and the processor seconds of a trial that trains nothing.

    The runner, the store and Dask's scheduler run in this process; workers do not count.
    """
    import distributed

    from mlx_attn.comparison.cluster_engines import DaskEngine
    from mlx_attn.comparison.executors import Worker
    from mlx_attn.comparison.plan import ComparisonConfig, arms_from
    from mlx_attn.comparison.run import ComparisonRun
    from mlx_attn.comparison.runner import Runner
    from mlx_attn.comparison.trial import Store, train_trial

    class Echo(DaskEngine):
        """Send every trial's record to a worker, which sends it back."""

        training: Any = None

        def submit(self, worker: Worker, order: dict[str, Any]) -> Future[dict[str, Any]]:
            executor = self._peers[worker.name].executor
            return executor.submit(dict, {**order, "training": self.training})

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster: Any = stack.enter_context(
            distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
        )
        client = stack.enter_context(distributed.Client(cluster))
        engine = stack.enter_context(closing(Echo(client, "here", ExitStack())))
        small = {"emb_dim": 16, "context_length": 16, "n_layers": 1, "steps": 8, "n_heads": 2}
        plan = ComparisonConfig(arms=arms_from(("standard", "no-query")), shared=small)
        runner = Runner(Store(folder), engine=engine)
        plan = ComparisonRun(plan, runner).protocol
        trials = [plan.trial(plan.arms[0], seed) for seed in range(count + 10)]
        engine.training = asdict(train_trial(trials[0]) or plan)
        list(runner(trials[:10]))  # inspects the workers
        began = time.perf_counter(), time.process_time()
        list(runner(trials[10:]))
        return (time.perf_counter() - began[0]) / count, (time.process_time() - began[1]) / count


def main() -> None:
    """Simulate or measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 40, 400])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="mean work of a trial")
    parser.add_argument("--cost", type=float, default=0.01, help="of handing out one trial")
    parser.add_argument("--hours-to-failure", type=float, default=2.0, help="of each worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measure", type=int, metavar="N")
    given = parser.parse_args()
    if given.measure:
        clock, processor = measure(given.measure)
        sys.stdout.write(
            f"{1000 * clock:.1f} ms a trial on the clock, {1000 * processor:.1f} of a processor\n"
        )
    else:
        sys.stdout.write(table(given))


if __name__ == "__main__":
    main()
