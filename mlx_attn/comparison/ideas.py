"""One idea after another against a control that each kept idea becomes: a step of a loop.

A directory holds the ledger `ideas.jsonl`, the trainings, and copies of the files of all ideas.
The ledger has a line for each idea, and before them one with their digest: a line that was changed
or removed by hand is noticed. An idea is booked, with its part of the error, before it is trained,
and judged by `sequence`; the same idea again adds seeds and trains nothing twice.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

import numpy as np

from mlx_attn import files
from mlx_attn.comparison import sequence
from mlx_attn.comparison.config import Arm
from mlx_attn.comparison.plan import Trial, trial_of
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.stages import ComparisonEvent, Events
from mlx_attn.errors import ConfigError, RunError, plural
from mlx_attn.plugins import only
from mlx_attn.records import parse_record, read_bytes, read_text

LEDGER, COPIES = "ideas.jsonl", "copies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """An idea of a ledger: an arm, and its verdict so far."""

    number: int  # from 1
    name: str
    verdict: str = "not known"  # or better, worse, the same
    is_open: bool = True  # whether the same command adds seeds
    reason: str = "the same command trains it"
    difference: float | None = None  # mean, in nats per token, idea minus control
    interval: tuple[float, float] | None = None  # at the idea's level
    margin: float = 0.0  # in nats per token: differences below it count as none
    seeds: int = 0
    level: float  # its part of `sequence.ERROR`
    # If its steps take longer: the difference when the control's time is over, off its curve.
    at_equal_time: float | None = None
    seconds: float = 0.0  # that its calls took, the control's trainings included
    differences: tuple[float, ...] = ()  # seed by seed
    digest: str  # of its settings and files
    control: str  # the same of the control
    plugins: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by file
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its arm


def read_ledger(folder: Path) -> list[Idea]:
    """Return the ideas of a folder, in order; an empty list without a ledger.

    Raises:
        RunError: The ledger is damaged, or was changed by hand.
    """
    path = folder / LEDGER
    text = read_text(path) if path.exists() else _digest([])
    digest, *lines = text.splitlines() or [""]
    if digest != _digest(lines):
        raise RunError(
            f"{path} was changed by hand, so its error is not known: put it back, or begin another "
            "with --out"
        )
    return [parse_record(line, Idea, str(path)) for line in lines]


def _digest(lines: Sequence[str]) -> str:
    """Return the first line of a ledger with these lines."""
    return json.dumps({"digest": files.digest("\n".join(lines).encode())})


def ledgers_in(directory: Path) -> dict[str, str]:
    """Return a line on each ledger of a directory and of its folders, by its path."""
    found: dict[str, str] = {}
    for path in sorted({*directory.glob(LEDGER), *directory.glob(f"*/{LEDGER}")}):
        try:
            words = Counter(idea.verdict for idea in read_ledger(path.parent))
            counts = ", ".join(f"{count} {word}" for word, count in words.items())
            found[str(path)] = f"{plural(words.total(), 'idea')}: {counts}"
        except RunError as error:
            found[str(path)] = str(error)
    return found


class IdeaRun:
    """The next idea of a ledger; iterating trains the missing trials, and yields events.

    Args:
        run: A comparison of the control and the idea.
        folder: The ledger's, which nobody else writes in.

    Raises:
        ConfigError: There are not two arms, or the idea is the control.
        RunError: The ledger is damaged, or of another control.
    """

    def __init__(self, run: ComparisonRun, folder: Path):
        if len(run.config.arms) != 2:
            raise ConfigError("an idea is judged alone: name the control and one idea")
        self.run, self.folder, self.ideas = run, folder, read_ledger(folder)
        self.control, self.arm = run.config.arms
        kept = [idea for idea in self.ideas if idea.verdict == "better"]
        if kept and kept[-1].digest == trial_of(run.config, self.arm, 0).digest:
            kept.pop()  # the last one is asked for again, against the control that it had
        # Fresh seeds after every keep: those that an idea was kept for flatter it.
        self._first_seed = 100 * len(kept)
        digest, self._of_control = self._trials(self.control, sequence.CONTROL_SEEDS)
        is_known = not self.ideas or digest == self.ideas[0].control
        if kept:
            self.control = Arm(f"{kept[-1].name}, idea {kept[-1].number}", kept[-1].settings)
            digest, self._of_control = self._from_copies(kept[-1], self.control)
            is_known = is_known and digest == kept[-1].digest
        if not is_known:
            raise RunError(
                f"{folder / LEDGER} is of another control: its settings, text or files have "
                "changed, or mlx_attn; put them back, or begin another ledger with --out"
            )
        of_idea, self._of_idea = self._trials(self.arm, max(sequence.LOOKS))
        if of_idea == digest:
            raise ConfigError(f"{self.arm.name} is the control, {self.control.name}: change it")
        new = Idea(
            number=len(self.ideas) + 1,
            name=self.arm.name,
            level=sequence.level_of(len(self.ideas) + 1),
            digest=of_idea,
            control=digest,
            plugins={Path(one["path"]).name: one["sha256"] for one in self._of_idea[0].plugins},
            settings=self.arm.settings,
        )
        asked = of_idea, digest
        self.idea = next((i for i in self.ideas if (i.digest, i.control) == asked), new)

    def _trials(self, arm: Arm, n: int) -> tuple[str, list[Trial]]:
        """Return the digest of an arm, whatever the seed, and its trainings."""
        seeds = range(self._first_seed, self._first_seed + n)
        config = self.run.config
        return trial_of(config, arm, 0).digest, [trial_of(config, arm, seed) for seed in seeds]

    def _from_copies(self, idea: Idea, arm: Arm) -> tuple[str, list[Trial]]:
        """Return the same with the copies of an idea's files."""
        copies = self.folder / COPIES / str(idea.number)
        with only(copies / name for name in idea.plugins):
            return self._trials(arm, sequence.CONTROL_SEEDS)

    def __iter__(self) -> Iterator[ComparisonEvent]:
        began = monotonic()
        if self.idea.number > len(self.ideas):
            self._copy()
            self._note()
        if not self.idea.is_open:
            return
        try:
            yield from self._judge()
        finally:
            if self.folder.exists():  # it was not removed or renamed meanwhile
                self._note(seconds=round(self.idea.seconds + monotonic() - began, 1))

    def _note(self, **facts: Any) -> None:
        """Note facts of the idea in the ledger."""
        self.idea = replace(self.idea, **facts)
        at = self.idea.number - 1
        self.ideas[at : at + 1] = [self.idea]
        lines = [json.dumps(asdict(idea), allow_nan=False) for idea in self.ideas]
        files.write_text(self.folder / LEDGER, "\n".join([_digest(lines), *lines]) + "\n")

    def _judge(self) -> Events:
        """Train control and idea as far as a word needs, and note it."""
        yield from self.run.train("control", self._of_control)
        try:
            control = self.run.store.trainings(self._of_control)
        except ConfigError as error:  # no fault of the idea
            because = f"because of the control, {self.control.name}"
            raise RunError(f"there is nothing to compare with, {because}: {error}") from error
        for seeds in sequence.LOOKS:
            if self.idea.is_open and seeds > self.idea.seeds:
                trials = self._of_idea[:seeds]
                try:
                    yield from self.run.train(self.arm.name, trials)
                    trainings = self.run.store.trainings(trials)
                except (ConfigError, RunError) as error:  # one diverged, or a user's code raised
                    reason = error.__cause__ or error
                    if not isinstance(reason, ConfigError):
                        raise
                    self._note(verdict="worse", is_open=False, reason=str(reason))
                else:
                    self._look(trainings, control)

    def _look(self, trainings: Sequence[TrialResult], control: Sequence[TrialResult]) -> None:
        """Judge the idea by its first trainings."""
        losses, of_control = ([each.val_loss for each in some] for some in (trainings, control))
        pairs = zip(losses, of_control, strict=False)  # seed by seed
        differences = tuple(one - other for one, other in pairs)
        earlier = (idea.differences for idea in self.ideas[: self.idea.number - 1])
        variance = sequence.variance_of(of_control, filter(None, earlier))
        margin = self.run.config.margin.nats
        look = sequence.look_at(differences, variance, self.idea.level, margin)
        closed = "kept: it is the control now" if look.verdict == "better" else "dropped"
        self._note(
            **look._asdict(),
            reason="the same command adds seeds" if look.is_open else closed,
            margin=margin,
            seeds=len(trainings),
            differences=differences,
            at_equal_time=_at_equal_time(trainings, control[: len(trainings)]),
        )

    def _copy(self) -> None:
        """Copy the idea's files, which the user will change again; refuse copies that differ."""
        copies = self.folder / COPIES / str(self.idea.number)
        for plugin in self._of_idea[0].plugins:
            path = Path(plugin["path"])
            for name in (path.name, *plugin.get("files", {})):
                files.write_bytes(copies / name, read_bytes(path.parent / name))
        if self._from_copies(self.idea, self.arm)[0] != self.idea.digest:
            raise RunError(
                f"{self.arm.name} cannot be copied to {copies}: a file has just changed, two have "
                "one name, or one is read by a path that does not begin with Path(__file__).parent"
            )


def _at_equal_time(idea: Sequence[TrialResult], control: Sequence[TrialResult]) -> float | None:
    """Return the difference when the control's time is over, if the idea takes 5 % longer.

    Before the first point of its curve nothing is known.
    """
    seconds = [fmean(each.step_seconds for each in some) for some in (idea, control)]
    step = control[0].steps * seconds[1] / seconds[0]
    if step * 1.05 > idea[0].steps or step < idea[0].curve[0].step:
        return None
    curves = (([p.step for p in one.curve], [p.val_loss for p in one.curve]) for one in idea)
    losses = (float(np.interp(step, steps, losses)) for steps, losses in curves)
    return fmean(losses) - fmean(each.curve[-1].val_loss for each in control)
