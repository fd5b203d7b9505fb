"""The numbers of every head: which there are, and how they are put into a table and into JSON."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mlx_attn.attention.circuits import why_not_one_matrix
from mlx_attn.lab.probe import Probe
from mlx_attn.show.quantities import plural


@dataclass(frozen=True, slots=True)
class Column:
    """A number that every head has.

    Attributes:
        group: What it is a number of.
        heading: Its name.
        meaning: What it says, for people.
        values: The number of every layer and head.
        uniform: Its name in `Probe.uniform`; empty where a uniform head has none.
        short: Its heading where there is little room; empty leaves it out there.
        full: The value that is shaded fully; 0 is the largest of the column.
    """

    group: str
    heading: str
    meaning: str
    values: Callable[[Probe], np.ndarray]
    uniform: str = ""
    short: str = ""
    full: float = 0.0


def _matrix_columns(group: str, letters: str, of: Callable[[Probe], Any]) -> tuple[Column, ...]:
    return (
        Column(
            group,
            "effective rank",
            "how many directions the matrix uses: the exponential of the entropy of its singular "
            "values (Roy and Vetterli, 2007)",
            lambda found: of(found).effective_rank,
            short=f"{letters}\nrank",
        ),
        Column(
            group,
            "stable rank",
            "squared Frobenius norm over squared largest singular value: a rank blind to small "
            "values",
            lambda found: of(found).stable_rank,
        ),
        Column(group, "norm", "Frobenius norm of the matrix", lambda found: of(found).norm),
        Column(
            group,
            "symmetry",
            "1 for a symmetric matrix, -1 for an antisymmetric one, 0 in between",
            lambda found: of(found).symmetry,
            short=f"{letters}\nsymm.",
            full=1.0,
        ),
    )


LOOKS = "what it looks at"
COLUMNS = (
    Column(
        LOOKS,
        "entropy",
        "spread of the attention in nats; e to the entropy is the number of tokens looked at",
        lambda found: found.statistics.entropy,
        "entropy",
        "entropy",
    ),
    Column(
        LOOKS,
        "distance",
        "how far back it looks, in tokens",
        lambda found: found.statistics.distance,
        "distance",
        "distance",
    ),
    Column(
        LOOKS,
        "previous",
        "share of the attention on the token before",
        lambda found: found.statistics.previous,
        "previous",
        "prev.\ntoken",
        1.0,
    ),
    Column(
        LOOKS,
        "first",
        "share of the attention on the first token",
        lambda found: found.statistics.first,
        "first",
        "first\ntoken",
        1.0,
    ),
    Column(
        LOOKS,
        "induction",
        "on random tokens read twice, the share on the token that followed last time (Olsson et "
        "al., 2022)",
        lambda found: found.statistics.induction,
        "induction",
        "induc-\ntion",
        1.0,
    ),
    *_matrix_columns("S_h, which makes its scores", "S", lambda found: found.scores),
    *_matrix_columns("V_h O_h, which it moves x by", "VO", lambda found: found.value_outputs),
)


def number(value: Any) -> str:
    """Two decimals, and never -0.00; a dash where there is no number."""
    return f"{round(float(value), 2) + 0.0:.2f}" if math.isfinite(value) else "-"


def why_multi_headed(found: Probe) -> str:
    """How many maps there are, in a sentence."""
    L, H = found.config.n_layers, found.config.n_heads
    if H == 1:
        return f"{plural(L, 'layer')} of one head: one attention map per layer, {L} in all."
    return (
        f"{plural(L, 'layer')} of {H} heads: {H} attention maps per layer, {L * H} in all. "
        "Each head looks at the text in its own way, hence multi-headed."
    )


def caveat(found: Probe) -> str:
    """What keeps S_h from being all there is to scores; empty if nothing does."""
    reason = why_not_one_matrix(found.config.attention())
    return f"Scores are not one matrix here: {reason}." if reason else ""


def heads_table(found: Probe) -> Group:
    """A row per head, as wide as a terminal."""
    columns = [column for column in COLUMNS if column.short]
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("layer", "head", *(column.short for column in columns)):
        table.add_column(heading, justify="right", no_wrap=True)
    values = [column.values(found) for column in columns]
    for layer, head in np.ndindex(found.config.n_layers, found.config.n_heads):
        numbers = [number(value[layer, head]) for value in values]
        table.add_row(str(layer), str(head), *numbers)
    table.add_row("uniform", "", *_uniform(found, columns), style="dim")
    return Group(Text(why_multi_headed(found)), table)


def legend(found: Probe) -> list[str]:
    """What the table's numbers are, in a few lines."""
    lines = [
        "entropy in nats, distance in tokens, shares of 1; uniform looks at all tokens alike",
        "S and VO: effective rank and symmetry of S_h and V_h O_h",
    ]
    return [*lines, *filter(None, [caveat(found)])]


def record(found: Probe) -> dict[str, Any]:
    """All numbers, for JSON; the maps themselves are left out."""
    heads = [
        {"layer": layer, "head": head}
        | {key: _json(array[layer, head]) for key, array in asdict(found.statistics).items()}
        | {"S": _matrix(found.scores, layer, head)}
        | {"VO": _matrix(found.value_outputs, layer, head)}
        for layer, head in np.ndindex(found.config.n_layers, found.config.n_heads)
    ]
    uniform = {key: _json(value) for key, value in found.uniform.items()}
    alignment = {
        "S": found.scores.alignment.tolist(),
        "VO": found.value_outputs.alignment.tolist(),
    }
    facts = {"texts": len(found.tokens), "tokens": found.tokens.shape[1]}
    return facts | {"heads": heads, "uniform": uniform, "alignment": alignment}


def _matrix(matrices: Any, layer: int, head: int) -> dict[str, Any]:
    keys = ("effective_rank", "stable_rank", "norm", "symmetry", "singular_values")
    return {key: getattr(matrices, key)[layer, head].tolist() for key in keys}


def _json(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _uniform(found: Probe, columns: list[Column]) -> list[str]:
    return [number(found.uniform[c.uniform]) if c.uniform else "" for c in columns]
