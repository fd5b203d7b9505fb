"""`mlx-attn variants`: the table of variants with their costs."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.attention.config import MAPS, VARIANTS
from mlx_attn.cli.options import (
    PREFIX,
    Named,
    Section,
    SectionedCommand,
    options_from,
    plugin_option,
)
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import PRESETS, GPTConfig, config_from, find_preset
from mlx_attn.training.config import DEFAULT_PRESET, resolve

if TYPE_CHECKING:
    from rich.table import Table

_COSTS = {
    "parameters": "parameters",
    "multiply-adds": "multiply_adds",
    "cache floats": "cache_floats",
}
"""Headings of the table, and the cost that each column shows."""


def variants(preset: str, as_json: bool, **flags: Any) -> None:
    """Show what each variant computes and costs.

    Parameters, multiply-adds per token (forward, at full context) and numbers cached per token when
    decoding, for the whole model at the sizes of a preset. Any size can be changed.
    """
    from mlx_attn.ui.terminal import stdout_console

    given = {key: value for key, value in flags.items() if value is not None}
    model = resolve({"preset": preset, **given}).model
    rows = [
        _row(name, {"vocab_size": find_preset(preset).vocab_size, **model}) for name in VARIANTS
    ]
    if as_json:
        click.echo(json.dumps({"preset": preset, "variants": rows}, indent=1))
    else:
        stdout_console().print(_table(rows, preset))


def _row(name: str, model: dict[str, Any]) -> dict[str, Any]:
    """A variant with its cost, or with the reason why these sizes do not allow it."""
    from mlx_attn.model.gpt import model_cost

    variant = VARIANTS[name]
    row = {"name": name, "formula": variant.formula, "summary": variant.summary}
    try:
        cost = asdict(model_cost(config_from({**model, **variant.maps})))
        return {**row, "cost": cost, "reason": None}
    except ConfigError as error:
        return {**row, "cost": None, "reason": str(error)}


def _table(rows: list[dict[str, Any]], preset: str) -> "Table":
    """The rows for a terminal; factors are relative to the first row, the standard one."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"preset {preset}", title_justify="left", box=None, padding=(0, 1))
    table.add_column("variant", ratio=1, overflow="fold")
    for heading in _COSTS:
        table.add_column(heading, justify="right", no_wrap=True)
    standard = rows[0]["cost"] or {}
    for row in rows:
        label = Text.assemble((row["name"], "bold"), "\n", (row["reason"] or row["formula"], "dim"))
        cost = row["cost"] or {}
        table.add_row(label, *(_cell(cost.get(key), standard.get(key)) for key in _COSTS.values()))
    return table


def _cell(cost: int | None, standard: int | None) -> str:
    from mlx_attn.ui.terminal import count

    if cost is None:
        return "-"
    return count(cost) + (f"\n{cost / standard:.2f} x" if standard else "")


command = SectionedCommand(
    "variants",
    callback=variants,
    params=[
        Section(
            ["--preset"],
            section="What to show",
            type=Named(PRESETS),
            default=DEFAULT_PRESET,
            show_default=True,
            metavar="NAME",
            help=f"sizes by name: {', '.join(PRESETS)}",
            envvar=PREFIX + "PRESET",
        ),
        Section(["--json", "as_json"], section="What to show", is_flag=True, help="as JSON"),
        plugin_option(),
        *options_from(GPTConfig, "Sizes", {}, frozenset(MAPS)),
    ],
    help=variants.__doc__,
)
