"""One idea after another against a control that each kept idea becomes: a step of a loop.

A directory holds the ledger `ideas.jsonl`, the trainings, and copies of the files of kept ideas.
The ledger has a line for each idea, and before them one with their digest: a line that was changed
or removed by hand is noticed. An idea is booked, with its part of the error, before it is trained,
and judged by `sequence`; the same idea again adds seeds and trains nothing twice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

import numpy as np

from mlx_attn import files
from mlx_attn.comparison.config import Arm
from mlx_attn.comparison.plan import Trial, trial_of
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.run import ComparisonRun, Events
from mlx_attn.comparison.runner import OutOfTime, TrainingFailed
from mlx_attn.comparison.sequence import (
    CONTROL_SEEDS,
    ERROR,
    LOOKS,
    Spread,
    level_of,
    look_at,
    pool_of,
)
from mlx_attn.comparison.stages import ComparisonEvent
from mlx_attn.comparison.trial import Diverged
from mlx_attn.errors import ConfigError, RunError, plural
from mlx_attn.model.gpt import GPT
from mlx_attn.plugins import only, plugin_error
from mlx_attn.records import as_record, parse_record, read_bytes, read_text

LEDGER, KEPT, REFUSED = "ideas.jsonl", "kept", "refused"

SEEDS_APART = 100
"""How far the seeds of one control lie from those of the next."""

SLOWER = 1.05
"""The ratio of the times of a step from which an idea is slower than the control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """An idea of a ledger: an arm, and what is known of it."""

    number: int  # from 1
    name: str
    verdict: str = "not known"  # or better, worse, the same, and refused before any training
    is_open: bool = True  # whether the same command adds seeds
    reason: str = "it is not trained yet"
    difference: float | None = None  # of the mean losses, in nats per token, idea minus control
    interval: tuple[float, float] | None = None  # at the idea's level
    seeds: int = 0
    level: float  # what it may spend of `ERROR`
    slower: float | None = None  # how many times as long its steps take, if they take longer
    # The idea's loss when the control's time is over, read off its curve, minus the control's.
    difference_at_equal_time: float | None = None
    seconds: float = 0.0  # that its calls took, the control's trainings included
    losses: tuple[float, ...] = ()  # of its seeds
    digest: str  # of its settings and files
    control: str  # that of the control
    plugins: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by file
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its arm

    @property
    def sentence(self) -> str:
        """The idea in one line."""
        numbers = ""
        if self.interval:
            low, high = self.interval
            numbers = f", {self.difference:+.4f} nats per token ({low:+.4f} to {high:+.4f})"
            numbers += f", {plural(self.seeds, 'seed')}"
        if self.difference_at_equal_time is not None:
            numbers += f", {self.difference_at_equal_time:+.4f} at equal time"
        return f"idea {self.number}, {self.name}: {self.verdict}{numbers}; {self.reason}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ideas of a directory, in order."""

    folder: Path
    control: str = ""  # digest of the first control
    ideas: tuple[Idea, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "Ledger":
        """Return the ledger in a folder, without ideas if there is none.

        Raises:
            RunError: It is damaged, or was changed by hand.
        """
        path = folder / LEDGER
        if not path.exists():
            return cls(folder)
        first, *lines = read_text(path).splitlines() or [""]
        head = parse_record(first, dict, f"{path}, line 1")
        if head.get("digest") != _digest(lines):
            raise RunError(
                f"{path} was changed by hand, so its error is not known: put it back, or begin "
                "another with --out"
            )
        records = (parse_record(line, dict, str(path)) for line in lines)
        ideas = tuple(as_record(record, Idea, str(path)) for record in records)
        return cls(folder, str(head.get("control", "")), ideas)

    def with_idea(self, idea: Idea) -> "Ledger":
        """Return the ledger with an idea, in place of its earlier line; the file is written."""
        ideas = (*self.ideas[: idea.number - 1], idea, *self.ideas[idea.number :])
        lines = [json.dumps(asdict(one), allow_nan=False) for one in ideas]
        head = json.dumps({"control": self.control, "digest": _digest(lines)})
        files.write_text(self.folder / LEDGER, "\n".join([head, *lines]) + "\n")
        return replace(self, ideas=ideas)

    @property
    def sentence(self) -> str:
        """The ledger in one line."""
        words = [idea.verdict for idea in self.ideas]
        counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        left = 100 * (ERROR - sum(idea.level for idea in self.ideas))
        return f"{plural(len(words), 'idea')}: {counts}; {left:.3g} % of error left"


def _digest(lines: Sequence[str]) -> str:
    return files.digest("\n".join(lines).encode())


def ledgers_in(directory: Path) -> dict[str, str]:
    """Return a line on each ledger of a directory and of its folders, by its path."""
    lines: dict[str, str] = {}
    for path in sorted({*directory.glob(LEDGER), *directory.glob(f"*/{LEDGER}")}):
        try:
            lines[str(path)] = Ledger.read(path.parent).sentence
        except RunError as error:
            lines[str(path)] = str(error)
    return lines


class IdeaRun:
    """The next idea of a ledger; iterating trains what is missing, and yields events.

    Args:
        run: A comparison of the control and the idea.
        folder: The ledger's, which nobody else writes in.

    Attributes:
        idea: What is known of it in the end.
        control: The arm that it is compared with.

    Raises:
        ConfigError: There are not two arms, or the idea is the control.
        RunError: The ledger is damaged, or of another control. Iterating: the idea is refused.
    """

    def __init__(self, run: ComparisonRun, folder: Path):
        if len(run.config.arms) != 2:
            raise ConfigError("an idea is judged alone: name the control and one idea")
        self.run, ledger = run, Ledger.read(folder)
        self.control, self.arm = run.config.arms
        kept = [idea for idea in ledger.ideas if idea.verdict == "better"]
        # Fresh seeds after every keep: those that an idea was kept for flatter it.
        self._first_seed = SEEDS_APART * len(kept)
        digest, self._of_control = self._trials(self.control, CONTROL_SEEDS)
        is_known = not ledger.ideas or digest == ledger.control
        self.ledger = replace(ledger, control=digest)
        if kept:
            self.control = Arm(f"{kept[-1].name}, idea {kept[-1].number}", kept[-1].settings)
            copies = folder / KEPT / str(kept[-1].number)
            with only(copies / name for name in kept[-1].plugins):
                digest, self._of_control = self._trials(self.control, CONTROL_SEEDS)
            is_known = is_known and digest == kept[-1].digest
        if not is_known:
            raise RunError(
                f"{folder / LEDGER} is of another control: its settings, text or files have "
                "changed, or mlx_attn; put them back, or begin another ledger with --out"
            )
        own, self._of_idea = self._trials(self.arm, max(LOOKS))
        if own == digest:
            raise ConfigError(f"{self.arm.name} is the control, {self.control.name}: change it")
        self.idea = self._found(own, digest)

    def _trials(self, arm: Arm, n: int) -> tuple[str, list[Trial]]:
        """Return the digest of an arm, whatever the seed, and its trainings."""
        seeds = range(self._first_seed, self._first_seed + n)
        config = self.run.config
        return trial_of(config, arm, 0).digest, [trial_of(config, arm, seed) for seed in seeds]

    def _found(self, digest: str, control: str) -> Idea:
        """Return the idea as the ledger has it, or a new one."""
        for idea in self.ledger.ideas:
            if (idea.digest, idea.control) == (digest, control):
                return idea
        return Idea(
            number=len(self.ledger.ideas) + 1,
            name=self.arm.name,
            level=level_of(1 + sum(idea.level > 0 for idea in self.ledger.ideas)),
            digest=digest,
            control=control,
            plugins={Path(one["path"]).name: one["sha256"] for one in self._of_idea[0].plugins},
            settings=self.arm.settings,
        )

    def __iter__(self) -> Iterator[ComparisonEvent]:
        began = monotonic()
        if self.idea.number > len(self.ledger.ideas):
            self._book()
        if self.idea.verdict == REFUSED:
            raise RunError(f"idea {self.idea.number} is refused: {self.idea.reason}")
        if not self.idea.is_open:
            return
        try:
            yield from self._judge()
        except OutOfTime as error:
            self._note(reason=str(error))
        finally:
            self._note(seconds=round(self.idea.seconds + monotonic() - began, 1))

    def _note(self, **facts: Any) -> None:
        """Note facts of the idea in the ledger."""
        self.idea = replace(self.idea, **facts)
        self.ledger = self.ledger.with_idea(self.idea)

    def _book(self) -> None:
        """Note the idea before it is trained, or that it breaks a law: then it cannot err."""
        try:
            # The laws of a user's choices are tried when a model is made.
            GPT(self.run.config.settings(self.arm).model_config(self.run.vocab_size), seed=None)
        except Exception as error:
            reason = str(error) if isinstance(error, ConfigError) else plugin_error(error)
            if not reason:
                raise
            self._note(verdict=REFUSED, is_open=False, level=0.0, reason=reason)
        else:
            self._note()

    def _judge(self) -> Events:
        """Train control and idea as far as a word needs, and note it."""
        yield from self.run.train("control", self._of_control)
        control = self._trainings(self._of_control)
        for seeds in LOOKS:
            if self.idea.is_open and seeds > self.idea.seeds:
                try:
                    yield from self.run.train(self.arm.name, self._of_idea[:seeds])
                    self._look(self._trainings(self._of_idea[:seeds]), control)
                except TrainingFailed as error:
                    self._note(verdict="worse", is_open=False, reason=str(error))

    def _trainings(self, trials: Sequence[Trial]) -> list[TrialResult]:
        trainings: list[TrialResult] = []
        for trial in trials:
            outcome = self.run.store[trial]
            if isinstance(outcome, Diverged):
                what = f"{trial.arm} diverged with seed {trial.seed}"
                raise TrainingFailed(f"{what}: {outcome.message}")
            trainings.append(outcome)
        return trainings

    def _look(self, trainings: Sequence[TrialResult], control: Sequence[TrialResult]) -> None:
        """Judge the idea by its first trainings."""
        losses, of_control = ([each.val_loss for each in some] for some in (trainings, control))
        before = self.ledger.ideas[: self.idea.number - 1]
        earlier = (Spread.of(idea.losses) for idea in before if idea.losses)
        pool = pool_of(Spread.of(of_control), earlier)
        look = look_at(losses, of_control, pool, self.idea.level, self.run.config.margin.nats)
        reason = "the same command adds seeds"
        if look.word == "better":
            self._keep()
            reason = "kept: it is the control from now on"
        elif look.is_last:
            reason = "dropped"
        slower, at_equal_time = _at_equal_time(trainings, control)
        self._note(
            verdict=look.word,
            is_open=not look.is_last,
            reason=reason,
            difference=look.difference,
            interval=look.interval,
            seeds=len(losses),
            losses=tuple(losses),
            slower=slower,
            difference_at_equal_time=at_equal_time,
        )

    def _keep(self) -> None:
        """Copy the idea's files, which the user goes on changing."""
        copies = self.ledger.folder / KEPT / str(self.idea.number)
        for plugin in self._of_idea[0].plugins:
            path = Path(plugin["path"])
            for name in (path.name, *plugin.get("files", {})):
                files.write_bytes(copies / name, read_bytes(path.parent / name))


def _at_equal_time(
    idea: Sequence[TrialResult], control: Sequence[TrialResult]
) -> tuple[float | None, float | None]:
    """Return how many times as long an idea's steps take, and its difference at equal time.

    Nothing if they do not take longer; no difference if its curve had not begun by then.
    """
    seconds = [fmean(each.step_seconds for each in some) for some in (idea, control)]
    slower = seconds[0] / seconds[1]
    if slower < SLOWER:
        return None, None
    step = control[0].steps / slower
    curves = [([p.step for p in each.curve], [p.val_loss for p in each.curve]) for each in idea]
    if step < curves[0][0][0]:
        return slower, None
    then = fmean(float(np.interp(step, *curve)) for curve in curves)
    return slower, then - fmean(each.val_loss for each in control)
