"""The losses of runs of other programs: read from a table, and judged as those of `compare`."""

import csv
import warnings
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from mlx_attn.comparison.judging import Contrast, judge
from mlx_attn.comparison.result import Verdict
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.records import read_text


def read_losses(file: Path) -> dict[str, dict[str, float]]:
    """Return the losses of a CSV file by arm and seed, in the order of its lines.

    Raises:
        RunError: The file lacks a column, a loss is no finite number, or an arm repeats a seed.
    """
    rows = csv.DictReader(read_text(file).splitlines())
    columns = ("arm", "seed", "loss")
    try:
        names, table = rows.fieldnames or (), [(rows.line_num, row) for row in rows]
    except csv.Error as error:
        raise RunError(f"{file}, line {rows.line_num + 1}: {error}") from error
    if missing := [name for name in columns if name not in names]:
        raise RunError(
            f"{file}: its first line must name the columns {', '.join(columns)}; it lacks "
            f"{', '.join(missing)}"
        )
    losses: dict[str, dict[str, float]] = {}
    for line, row in table:
        arm, seed, loss = (str(row[name] or "").strip() for name in columns)
        if seed in losses.setdefault(arm, {}):
            raise RunError(f"{file}, line {line}: {arm} has seed {seed} twice: keep one of them")
        try:
            losses[arm][seed] = float(loss)
        except ValueError as error:
            raise RunError(f"{file}, line {line}: loss '{loss}' is not a number") from error
        if not isfinite(losses[arm][seed]):
            raise RunError(
                f"{file}, line {line}: the loss {loss} of {arm} is not finite: an arm that "
                "diverges is worse, and a mean over its other seeds would flatter it"
            )
    return losses


def judge_losses(
    losses: Mapping[str, Mapping[str, float]], delta: float, confidence: float
) -> dict[str, Verdict]:
    """Judge every arm against the first one, in pairs of the same seed.

    Raises:
        ConfigError: There is one arm, or two arms share no seed.
    """
    if len(losses) < 2:
        raise ConfigError(f"a comparison needs two arms: got {', '.join(losses) or 'none'}")
    (control, of_control), *others = losses.items()
    contrasts: dict[str, Contrast] = {}
    for arm, of_arm in others:
        pairs = tuple(
            loss - of_control[seed] for seed, loss in of_arm.items() if seed in of_control
        )
        if not pairs:
            raise ConfigError(
                f"{arm} and {control} have no seed in common: runs are compared in pairs"
            )
        if alone := of_arm.keys() ^ of_control.keys():
            left_out = f"left out are seeds that only {control} or {arm} has, {len(alone)} in all"
            warnings.warn(f"{left_out}: if those runs failed, the others flatter", stacklevel=2)
        contrasts[arm] = Contrast(differences=pairs)
    return judge(contrasts, delta, confidence)
