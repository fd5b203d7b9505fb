"""The losses of runs of other programs: read from a table, and judged as those of `compare`."""

import csv
import warnings
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from mlx_attn.comparison.judging import Contrast, judge
from mlx_attn.comparison.result import Verdict
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.records import read_text

LARGEST = 1e100  # a loss whose square is a number


def read_losses(file: Path) -> dict[str, dict[str, float]]:
    """Return the losses of a CSV file by arm and seed, in the order of its lines.

    Raises:
        RunError: A column or cell is missing or surplus, a loss not finite, or a seed repeated.
    """
    rows = csv.DictReader(read_text(file).splitlines(), strict=True)
    columns = ("arm", "seed", "loss")
    try:
        names, table = rows.fieldnames or (), [(rows.line_num, row) for row in rows]
    except csv.Error as error:
        unclosed = "look for a quotation mark that is not closed"
        raise RunError(f"{file}, line {rows.line_num + 1}: {error}: {unclosed}") from error
    if wrong := [name for name in columns if names.count(name) != 1]:
        raise RunError(
            f"{file}: its first line must name each of the columns {', '.join(columns)} once; look "
            f"at {', '.join(wrong)}"
        )
    losses: dict[str, dict[str, float]] = {}
    for line, row in table:
        arm, seed, loss = (str(row[name] or "").strip() for name in columns)
        if not arm or not seed or None in row:
            raise RunError(f"{file}, line {line}: give it arm, seed and {len(names)} cells in all")
        if seed in losses.setdefault(arm, {}):
            raise RunError(f"{file}, line {line}: {arm} has seed {seed} twice: keep one of them")
        try:
            losses[arm][seed] = float(loss)
        except ValueError as error:
            raise RunError(f"{file}, line {line}: loss '{loss}' is not a number") from error
        if not abs(losses[arm][seed]) < LARGEST:  # nor is NaN
            raise RunError(
                f"{file}, line {line}: the loss {loss} of {arm} is not finite or too large: an arm "
                "that diverges is worse, and a mean over its other seeds would flatter it"
            )
    return losses


def judge_losses(
    losses: Mapping[str, Mapping[str, float]], delta: float, confidence: float
) -> dict[str, Verdict]:
    """Judge every arm against the first one, in pairs of the same seed.

    Runs of one arm that all have the same loss are one run: no seed changed them.

    Raises:
        ConfigError: There is one arm, or two arms share no seed.
    """
    if len(losses) < 2:
        raise ConfigError(f"a comparison needs two arms: got {', '.join(losses) or 'none'}")
    (control, of_control), *others = losses.items()
    contrasts: dict[str, Contrast] = {}
    for arm, of_arm in others:
        pairs = [(loss, of_control[seed]) for seed, loss in of_arm.items() if seed in of_control]
        if not pairs:
            raise ConfigError(
                f"{arm} and {control} have no seed in common: runs are compared in pairs"
            )
        if alone := of_arm.keys() ^ of_control.keys():
            left_out = f"left out are seeds that only {control} or {arm} has, {len(alone)} in all"
            warnings.warn(f"{left_out}: if those runs failed, the others flatter", stacklevel=2)
        differences = tuple(loss - other for loss, other in pairs)
        if len(pairs) > 1 and min(len(set(column)) for column in zip(*pairs, strict=True)) == 1:
            differences = (fmean(differences),)
            alike = f"all {len(pairs)} runs of {arm} or of {control} have the same loss"
            warnings.warn(f"{alike}, and count as one run: did the seed reach it?", stacklevel=2)
        contrasts[arm] = Contrast(differences=differences)
    return judge(contrasts, delta, confidence)
