"""Several trainings at once, for whoever sits in front of them: their means, or JSON by seed."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Protocol, TypeVar, runtime_checkable

from mlx_attn.errors import RunError
from mlx_attn.show.means import deviation, mean_evaluated, mean_of, mean_stepped
from mlx_attn.show.progress import Display, Json, Plain
from mlx_attn.show.quantities import count, duration
from mlx_attn.show.training import Audience, Keeper
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.loop import INTERRUPTED
from mlx_attn.training.replicas import Launch, Replica, train_replicas
from mlx_attn.training.reports import Ended, Evaluated, Failed, Report, Started, Stepped, as_record

Ends = Mapping[int, Ended]
R = TypeVar("R", Stepped, Evaluated)


@runtime_checkable
class ReplicaDisplay(Protocol):
    """Takes the reports of every seed."""

    display: Display

    def __call__(self, seed: int, report: Report) -> None:
        """Show one report."""
        ...

    def conclude(self, ends: Ends) -> None:
        """Show the results of those that came to their end, by seed."""
        ...


class BySeed:
    """One JSON object a report, with the seed that it is of."""

    def __init__(self, display: Display):
        self.display = display

    def __call__(self, seed: int, report: Report) -> None:
        """One object, flushed."""
        print(json.dumps({**as_record(report), "seed": seed}, allow_nan=False), flush=True)

    def conclude(self, ends: Ends) -> None:
        """Nothing more."""


class Means:
    """Shows the mean of what all report of a step, as another display shows one training."""

    def __init__(self, display: Display, seeds: Sequence[int]):
        self.display = display
        self._last_step: dict[int, float] = dict.fromkeys(seeds, math.inf)
        self._stepped: list[Stepped] = []
        self._evaluated: list[Evaluated] = []

    def __call__(self, seed: int, report: Report) -> None:
        """Wait for the reports of the others, and show one for all."""
        if isinstance(report, Stepped):
            self._stepped = [*_of_its_step(self._stepped, report), report]
            if self._complete(self._stepped):
                self.display(mean_stepped(self._stepped))
        elif isinstance(report, Evaluated):
            self._evaluated = [*_of_its_step(self._evaluated, report), report]
            if self._complete(self._evaluated):
                self.display(mean_evaluated(self._evaluated))
        elif isinstance(report, Failed):
            self._last_step[seed] = report.step - 1
            self.display.message(f"seed {seed}: {report.message}")
        elif isinstance(report, Ended):
            self._last_step[seed] = report.steps
        elif isinstance(report, Started):
            self.display(report)

    def conclude(self, ends: Ends) -> None:
        """The mean, every seed, and what to do next."""
        for line in closing_lines(ends):
            print(line)

    def _complete(self, reports: Sequence[Stepped | Evaluated]) -> bool:
        """Whether all that go as far as this step have reported it."""
        step = reports[-1].step
        return len(reports) == sum(last >= step for last in self._last_step.values())


class Paths(Means):
    """Shows no progress; the result is the runs' directories, for a script."""

    def conclude(self, ends: Ends) -> None:
        """Where the runs are."""
        for report in ends.values():
            print(report.run)


def replica_display(display: Display, seeds: Sequence[int]) -> ReplicaDisplay:
    """Shows several trainings by the display that would show one."""
    if isinstance(display, Json):
        return BySeed(display)
    return Means(display, seeds) if isinstance(display, Plain) else Paths(display, seeds)


def closing_lines(ends: Ends) -> list[str]:
    """What to know when all are over."""
    losses = [end.val_loss for end in ends.values() if end.val_loss is not None]
    if not losses:
        return ["no validation yet"]
    bits = mean_of([end.bits_per_byte for end in ends.values()])
    per_byte = "" if bits is None else f", {bits:.4f} bits per byte"
    ended, speed = list(ends.values())[-1], sum(end.tok_s for end in ends.values())
    lines = [
        f"best val loss {fmean(losses):.4f} ± {deviation(losses):.4f} nats per token"
        f"{per_byte}: mean and deviation of {len(losses)} seeds; {duration(ended.seconds)}, "
        f"{count(sum(end.tokens for end in ends.values()))} tokens, {count(speed)} tok/s"
    ]
    for seed, end in ends.items():
        lines.append(f"seed {seed}  {end.val_loss:.4f}  {end.steps} steps  {end.run}".rstrip())
    return lines


def follow_replicas(
    replicas: Sequence[Replica],
    launch: Launch,
    tokenizer: Tokenizer,
    display: ReplicaDisplay,
    asked: Callable[[], bool],
) -> str:
    """Train, show and store every report, conclude, and return why the training ended.

    Every replica's reports and samples go to its own run, as in `show.training.follow`.

    Raises:
        OSError: Reports could not be shown, as on a full disk; all is saved.
        RunError: Replicas failed; the others came to their end.
    """
    keepers = {replica.config.seed: Keeper(replica, tokenizer) for replica in replicas}
    failed: dict[int, str] = {}
    audience = Audience()
    with display.display:
        for replica, report in train_replicas(replicas, launch, lambda: asked() or audience.gone):
            seed = replica.config.seed
            keepers[seed](report)
            audience.show(partial(display, seed, report))
            if isinstance(report, Failed):
                failed[seed] = report.message
    audience.complain()
    return _concluded(replicas, display, keepers, failed)


def _concluded(
    replicas: Sequence[Replica],
    display: ReplicaDisplay,
    keepers: Mapping[int, Keeper],
    failed: Mapping[int, str],
) -> str:
    ends = {seed: keeper.ended for seed, keeper in keepers.items() if keeper.ended}
    if any(end.reason == INTERRUPTED for end in ends.values()):
        display.display.message(what_is_saved(replicas))
        return INTERRUPTED
    if ends:
        display.conclude(ends)
    if failed:
        seed, message = next(iter(failed.items()))
        raise RunError(f"{len(failed)} of {len(replicas)} replicas failed: seed {seed}: {message}")
    return next(iter(ends.values())).reason


def what_is_saved(replicas: Sequence[Replica]) -> str:
    """How to go on with trainings that were interrupted."""
    runs = [replica.run for replica in replicas if replica.run]
    steps = [r.saved_step for r in replicas if r.saved_step is not None]
    if not runs or len(steps) < len(replicas):
        return "stopped; not every replica was saved"
    return f"saved at step {min(steps)}; go on with:  mlx-attn train --resume {runs[0].path.parent}"


def _of_its_step(reports: list[R], report: R) -> list[R]:
    """Those of the same step; what is left of an earlier one is dropped."""
    return [other for other in reports if other.step == report.step]
