"""`mlx-attn variants`: the table of variants with their costs."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any

import click

from mlx_attn.attention.catalog import CHOICES, MAPS, VARIANTS
from mlx_attn.cli.options import (
    PLUGIN,
    SIZES,
    GroupedOption,
    SectionedCommand,
    given,
    preset_option,
)
from mlx_attn.cli.output import emit
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import find_preset
from mlx_attn.training.config import DEFAULT_PRESET, resolve

_COSTS = {
    "parameters": "parameters",
    "multiply_adds": "multiply-adds",
    "cache_bytes": "cache bytes",
}
"""The costs that columns show, with their headings."""


_what = partial(GroupedOption, "What to show")
_OPTIONS = [
    preset_option("What to show", DEFAULT_PRESET),
    _what(
        "--choices",
        is_flag=True,
        help="the names that --score, --value, --mixing and the other maps take",
    ),
    _what("--json", "as_json", is_flag=True, help="as JSON"),
    PLUGIN,
    *SIZES,
]


@click.command(cls=SectionedCommand, params=_OPTIONS)
def command(preset: str, as_json: bool, choices: bool, **flags: Any) -> None:
    """Show the formula and the cost of each variant.

    Parameters, multiply-adds per token (forward, at full context), and the bytes of the full cache
    in float32, for the model at the sizes of a preset. Any size can be changed.
    """
    from mlx_attn.cost import model_cost

    if choices:
        _show_choices(as_json)
        return
    sizes = {"preset": preset, **given(flags)}
    vocab_size = sizes.get("vocab_size", find_preset(preset).vocab_size)
    context = resolve(sizes).model_config(vocab_size).context_length
    rows: list[dict[str, Any]] = []
    for variant in VARIANTS.values():
        row = {key: getattr(variant, key) for key in ("name", "group", "formula", "summary")}
        try:
            model = resolve({**sizes, "variant": variant.name}).model_config(vocab_size)
            rows.append({**row, "cost": asdict(model_cost(model)), "reason": None})
        except ConfigError as error:  # these sizes do not allow it
            rows.append({**row, "cost": None, "reason": str(error)})
    title = f"preset {preset}, cache of {context} tokens in float32"
    emit({"preset": preset, "variants": rows}, as_json, lambda: _listing(rows, title))


def _show_choices(as_json: bool) -> None:
    """Show the choices of every map, a user's own too."""
    facts = ("map", "name", "formula", "source", "cache", "affine")
    record: list[dict[str, Any]] = []
    shown: list[Any] = []
    for key in (*MAPS, "position"):
        table = [*filter(None, CHOICES[key].values())]
        record += [{fact: getattr(choice, fact, None) for fact in facts} for choice in table]
        shown += table and [f"--{key}", [(f"  {choice.name}", choice.formula) for choice in table]]
    emit({"choices": record}, as_json, lambda: shown)


def _listing(rows: list[dict[str, Any]], title: str) -> Iterator[Any]:
    """Yield each row's costs, by group, with its formula below; factors are of the first row."""
    from rich.padding import Padding
    from rich.text import Text

    from mlx_attn.ui.terminal import count

    names = max(len(row["name"]) for row in rows)
    standard = rows[0]["cost"] or {}

    def cell(cost: dict[str, int] | None, key: str) -> str:
        if not cost:
            return "-"
        factor = f"{cost[key] / standard[key]:.2f}x" if standard.get(key) else ""
        return f"{count(cost[key])}{factor:>7}"

    yield Text(title)
    for group, members in groupby(rows, key=lambda row: row["group"]):
        headings = "".join(f"{heading:>16}" for heading in _COSTS.values())
        yield Text(f"\n{group:{names}}{headings}", "italic")
        for row in members:
            cells = (f"{cell(row['cost'], key):>16}" for key in _COSTS)
            yield Text.assemble((f"{row['name']:{names}}", "bold"), *cells)
            yield Padding(Text(row["reason"] or row["formula"], "dim"), (0, 0, 0, 2), expand=False)
