"""Losses of anybody's runs, from any program: a table of arms, seeds and losses, judged."""

import csv
from collections.abc import Mapping
from pathlib import Path

from mlx_attn.comparison.decisions import Verdict, judge
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.records import read_text

COLUMNS = ("arm", "seed", "loss")


def read_losses(file: Path) -> dict[str, dict[str, float]]:
    """Return the losses of a CSV file by arm and seed, in the order of its lines.

    Raises:
        RunError: The file lacks a column, a loss is not a number, or an arm repeats a seed.
    """
    rows = csv.DictReader(read_text(file).splitlines())
    if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
        raise RunError(
            f"{file}: its first line must name the columns {', '.join(COLUMNS)}; it lacks "
            f"{', '.join(missing)}"
        )
    losses: dict[str, dict[str, float]] = {}
    # Line 1 has the names of the columns.
    for number, row in enumerate(rows, 2):
        arm, seed, loss = (str(row[name] or "").strip() for name in COLUMNS)
        if seed in losses.setdefault(arm, {}):
            raise RunError(f"{file}, line {number}: {arm} has seed {seed} twice: keep one of them")
        try:
            losses[arm][seed] = float(loss)
        except ValueError as error:
            raise RunError(f"{file}, line {number}: loss '{loss}' is not a number") from error
    return losses


def judge_losses(
    losses: Mapping[str, Mapping[str, float]], delta: float, confidence: float
) -> dict[str, Verdict]:
    """Judge every arm against the first one, in pairs of the same seed.

    Raises:
        ConfigError: There is one arm, two arms share no seed, or a loss is not finite.
    """
    if len(losses) < 2:
        raise ConfigError(f"a comparison needs two arms: got {', '.join(losses) or 'none'}")
    (control, of_control), *others = losses.items()
    differences: dict[str, list[float]] = {}
    for arm, of_arm in others:
        shared = [seed for seed in of_arm if seed in of_control]
        if not shared:
            raise ConfigError(
                f"{arm} and {control} have no seed in common: runs are compared in pairs"
            )
        # Only seeds that both arms have form pairs.
        differences[arm] = [of_arm[seed] - of_control[seed] for seed in shared]
    return judge(differences, delta, confidence)


def verdict_lines(control: str, verdicts: Mapping[str, Verdict], confidence: float) -> list[str]:
    """Return a line for each verdict."""
    return [_line(arm, control, verdict, confidence) for arm, verdict in verdicts.items()]


def _line(arm: str, control: str, verdict: Verdict, confidence: float) -> str:
    pairs, shown = len(verdict.differences), "too few for an interval"
    if verdict.interval:
        low, high = verdict.interval
        shown = f"{100 * confidence:g} % interval {low:+.4g} to {high:+.4g}"
    more = f"; about {verdict.seeds_needed} seeds would decide" if verdict.seeds_needed else ""
    if verdict.other_word not in ("", verdict.word):
        more += f"; by the worst of five: {verdict.other_word}"
    answer = f"{arm}, compared with {control}: {verdict.word}, {verdict.mean:+.4g}"
    return f"{answer} ({shown}, {pairs} pairs){more}"
