"""One trial: trained, recorded, and kept as one small JSON file, named by its settings' digest.

A finished trial is never trained again, so that an interrupted comparison continues where it was,
and another seed or arm costs only its own trials.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import Point, TrialResult
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_text
from mlx_attn.laws import ROUNDING, differ
from mlx_attn.machine.facts import arithmetic, chip_name, source_digest
from mlx_attn.records import Object, as_record, read_record
from mlx_attn.training import events
from mlx_attn.training.evaluation import EVALUATION_TOKENS, Evaluation, evaluation_record
from mlx_attn.training.loop import INTERRUPTED, never, train
from mlx_attn.training.trainer import Diverged as DivergedError
from mlx_attn.training.trainer import Trainer

CURVE_WINDOWS = 32  # validation windows that a text is evaluated on during training


@dataclass(frozen=True, slots=True)
class Diverged:
    """The outcome of a trial whose loss became infinite or NaN; the message names the step."""

    message: str


Outcome = TrialResult | Diverged


class LeakError(ConfigError):
    """A user's code lets a token read later ones, though not when its layers were tried."""


def loss_of(outcome: Outcome) -> float:
    """Return the final loss; inf if the training diverged."""
    # Infinity loses against every finite loss when learning rates are chosen.
    return inf if isinstance(outcome, Diverged) else outcome.val_loss


def has_failed(outcome: Outcome) -> bool:
    """Return True if the training diverged, or ended before it solved its task."""
    return isinstance(outcome, Diverged) or (outcome.is_of_task and outcome.steps_to_solve is None)


def record_of(outcome: Outcome) -> Object:
    """Return the record of a finished trial."""
    if isinstance(outcome, Diverged):
        return {"diverged": outcome.message}
    return {"training": asdict(outcome)}


def outcome_from(record: Object, trial: Trial, place: str) -> Outcome:
    """Return the outcome in a record of the trial; raise RunError if it cannot be of this trial."""
    # A divergence is a result as well: it is never trained again.
    if record.get("diverged") is not None:
        return as_record({"message": record["diverged"]}, Diverged, place)
    outcome = as_record(record.get("training"), TrialResult, place)
    came, asked = (outcome.seed, outcome.steps), (trial.seed, trial.settings.training.steps)
    if came != asked or outcome.tok_s <= 0 or not isfinite(outcome.val_loss):
        ended = f"seed {outcome.seed} ended with the loss {outcome.val_loss} after {outcome.steps}"
        raise RunError(f"{place}: {ended} of {asked[1]} steps, at {outcome.tok_s} tok/s")
    return outcome


class Store:
    """The finished trials in a folder, made with the first one if its parent is still there."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, trial: Trial) -> Path:
        """Return the file of a trial, finished or not."""
        return self.folder / f"{trial.digest}.json"

    def __contains__(self, trial: Trial) -> bool:
        return self.path(trial).exists()

    def __getitem__(self, trial: Trial) -> Outcome:
        path = self.path(trial)
        try:
            return outcome_from(read_record(path), trial, str(path))
        except RunError as error:
            raise RunError(
                f"{error}; not a finished training: without the file, the same command trains it"
            ) from error

    def trainings(self, trials: Iterable[Trial]) -> tuple[TrialResult, ...]:
        """Return finished trainings.

        Raises:
            ConfigError: One diverged: a mean over the others would flatter their arm.
        """
        found: list[TrialResult] = []
        for trial in trials:
            outcome = self[trial]
            if isinstance(outcome, Diverged):
                raise ConfigError(f"with seed {trial.seed} it diverged: {outcome.message}")
            found.append(outcome)
        return tuple(found)

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that are not finished, each once: arms with equal settings share it."""
        wanted = {trial.digest: trial for trial in trials}
        return [trial for trial in wanted.values() if trial not in self]

    def of_other_code(self) -> int:
        """Count the trainings that were made with other code of the package: they are not used."""
        count = 0
        for path in self.folder.glob("*.json"):
            with suppress(RunError):  # a damaged file is refused when it is needed
                count += read_record(path).get("source") != source_digest()
        return count

    def __setitem__(self, trial: Trial, outcome: Outcome) -> None:
        if not (place := self.folder.parent).exists():
            way_out = "put it back, and the same command continues"
            raise RunError(f"{place} was removed or renamed meanwhile: {way_out}")
        # Arm and settings are for people who read the file; only the outcome is read back.
        record = {"arm": trial.arm, "settings": trial.flat, "plugins": [*trial.plugins]}
        record |= {"source": source_digest(), **record_of(outcome)}
        write_text(self.path(trial), json.dumps(record, indent=1, sort_keys=True) + "\n")


def train_trial(trial: Trial, should_stop: Callable[[], bool] = never) -> Outcome:
    """Train one trial.

    Raises:
        LeakError: The trained model reads later tokens.
        RunError: Text or tokenizer are not the ones that the trial is of, or it was told to stop.
    """
    corpus = trial.settings.corpus()
    if trial.text and corpus.fingerprint != trial.text:
        changed = f"{corpus.name} or its tokenizer has changed since the comparison began"
        raise RunError(f"{changed}: put it back")
    trainer = Trainer(trial.settings, corpus)
    is_text, curve, last, ended = not trainer.config.eval_every, list[Point](), None, None
    # The same windows for every point of a curve, so that they are comparable.
    estimate = partial(trainer.evaluator.estimate, trainer.model, CURVE_WINDOWS)
    try:
        for event in train(trainer, should_stop):
            match event:
                # Tasks are evaluated fully, and so is every text at its end.
                case events.Stepped(step=step) if is_text and step < trainer.steps:
                    curve.append(Point(step=step, val_loss=estimate()))
                case events.Evaluated(step=step, evaluation=last):
                    loss = estimate() if is_text else last.val_loss
                    curve.append(Point(step=step, val_loss=loss, accuracy=last.accuracy))
                case events.Ended():
                    ended = event
    except DivergedError as error:
        return Diverged(str(error))
    assert ended
    if ended.reason == INTERRUPTED:
        raise RunError("it was told to stop")
    assert last
    _check_for_leaks(trial, trainer)
    # Arms of other context lengths have other windows: all points move as the last one does.
    moved = last.val_loss - curve[-1].val_loss
    curve = [replace(point, val_loss=point.val_loss + moved) for point in curve]
    return _outcome(trial, ended, last, curve, corpus.val.floor)


def _check_for_leaks(trial: Trial, trainer: Trainer) -> None:
    """Refuse a user's form if its trained model reads later tokens of the validation text.

    The layers were tried (`laws`) before: code may count its calls, or the texts of a batch.
    """
    if not trial.plugins:
        return
    model, T = trainer.model, trainer.evaluator.context_length
    # [B, T], as many as in an evaluation; each is changed from another token on.
    texts = mx.array(trainer.evaluator.texts(max(1, EVALUATION_TOKENS // T)))
    B = len(texts)
    same = mx.arange(T) < (mx.arange(B)[:, None] + 1) * T // (B + 1)
    others = mx.where(same, texts, (texts + 1) % model.config.vocab_size)
    model.eval()
    y, changed = (model.features(x) * same[..., None] for x in (texts, others))
    if off := differ(changed, y, ROUNDING):
        raise LeakError(
            f"the trained model reads later tokens: with those changed, its outputs change by {off}"
        )


def _outcome(
    trial: Trial, ended: events.Ended, last: Evaluation, curve: list[Point], floor: float | None
) -> TrialResult:
    # In nats for texts too; their evaluation has bits per byte.
    above_floor = None if floor is None else last.val_loss - floor
    evaluated: dict[str, Any] = {**evaluation_record(last), "above_floor": above_floor}
    if last.bits_per_byte:
        nats = last.val_loss / last.bits_per_byte  # per token, of one bit per byte
        evaluated["abilities"] = {name: nats * share for name, share in last.abilities.items()}
    return TrialResult(
        **evaluated,
        seed=trial.seed,
        steps=ended.steps,
        tokens=ended.tokens,
        curve=tuple(curve),
        tok_s=ended.tok_s,
        seconds=ended.seconds,
        machine={"chip": chip_name(), **arithmetic()},
    )
