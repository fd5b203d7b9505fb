"""On which kind of machine each trial is trained: a rule that no scheduler knows.

Trials of one seed are compared in pairs, so they are trained on one kind of machine; where equal
seconds count, all are, because seconds of two kinds are different budgets.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from mlx_attn.comparison.executors import Notice, Worker
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import BudgetResult, Comparison, TrialResult
from mlx_attn.comparison.trial import Outcome

GRACE = 60.0  # seconds that seeds wait for a kind of machine that went away


def kind_of(machine: Mapping[str, str]) -> str:
    """Return the kind of a machine in words; "" if its record does not tell."""
    if not machine:
        return ""
    return "{chip}, {device}, mlx {mlx}, arithmetic {arithmetic}".format(**machine)


class Placement:
    """Chooses the next trial of a worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.one_kind = False  # whether all trials have to be trained on one kind of machine
        # Takes a line when seeds have to change their kind of machine.
        self.notice: Notice = lambda line: None
        self._kinds: dict[int | None, str] = {}  # by seed; None for all seeds
        self._seen: dict[str, float] = {}  # when each kind had a worker for the last time
        self._clock = clock

    def remember(self, trial: Trial, outcome: Outcome) -> None:
        """Keep on which kind of machine a finished trial was trained."""
        if isinstance(outcome, TrialResult) and (kind := kind_of(outcome.machine)):
            self._kinds.setdefault(self._group(trial), kind)

    def see(self, workers: Sequence[Worker]) -> None:
        """Take note of the workers that there are now."""
        now = self._clock()
        self._seen |= {worker.kind: now for worker in workers}
        kinds = Counter(worker.kind for worker in workers)
        if self.one_kind and kinds and self._is_free(None):
            # The commonest kind trains everything.
            ((kind, _),) = kinds.most_common(1)
            self._assign(None, kind)
            if others := [other for other in kinds if other != kind]:
                self.notice(
                    f"equal seconds count on one kind of machine, {kind}: workers of "
                    f"{'; '.join(others)} take no part (--budgets steps,params uses all)"
                )

    def choose(self, waiting: Iterable[Trial], worker: Worker) -> Trial | None:
        """Return the first trial that may be trained there, or None."""
        for trial in waiting:
            group = self._group(trial)
            # An engine that reports no kinds has only one.
            if not worker.kind or self._kinds.get(group) == worker.kind:
                return trial
            # The first worker that asks decides for the whole seed.
            if not self.one_kind and self._is_free(group):
                self._assign(group, worker.kind)
                return trial
        return None

    def _group(self, trial: Trial) -> int | None:
        return None if self.one_kind else trial.seed

    def _is_free(self, group: int | None) -> bool:
        """Return whether a group of trials may be given any kind of machine now."""
        kind = self._kinds.get(group)
        if kind is None:
            return True
        # A kind that went away keeps its seeds for a while, in case its workers come back.
        return self._clock() - self._seen.setdefault(kind, self._clock()) > GRACE

    def _assign(self, group: int | None, kind: str) -> None:
        before = self._kinds.get(group)
        if before is not None and kind and before != kind:
            what = "all seeds" if group is None else f"seed {group}"
            self.notice(f"no worker of {before} is left: {what} goes on with {kind}")
        self._kinds[group] = kind


def machines_of(comparison: Comparison) -> str:
    """Return the kinds of machine that trained a comparison, as far as its records tell."""
    kinds = {kind for b in comparison.budgets for kinds in _by_seed(b).values() for kind in kinds}
    return "; ".join(sorted(kinds))


def mixed_pairs(comparison: Comparison) -> str:
    """Return a line about differences between arms that are ones between machines, too; or ""."""
    parts: list[str] = []
    for budget in comparison.budgets:
        by_seed = _by_seed(budget)
        mixed = [str(seed) for seed, kinds in by_seed.items() if len(kinds) > 1]
        if mixed:
            parts.append(f"seeds {', '.join(mixed)} with equal {budget.budget}")
        elif budget.budget == "seconds" and len(set().union(*by_seed.values())) > 1:
            parts.append("equal seconds")
    if not parts:
        return ""
    return f"Trained on different kinds of machine, so compared across them: {'; '.join(parts)}."


def _by_seed(budget: BudgetResult) -> dict[int, set[str]]:
    kinds: dict[int, set[str]] = {}
    for training in (training for arm in budget.arms for training in arm.trainings):
        # "" in records of 0.1.0, which lack the machine.
        kind = kind_of(training.machine)
        kinds.setdefault(training.seed, set()).update([kind] if kind else [])
    return kinds
