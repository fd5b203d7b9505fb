"""The table of variants with their costs."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from mlx_attn.attention.config import VARIANTS
from mlx_attn.cli.options import PREFIX, Named, Section, SectionedCommand, options_from
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import PRESETS, GPTConfig, config_from, find_preset
from mlx_attn.model.gpt import ModelCost, model_cost
from mlx_attn.training.config import DEFAULT_PRESET, resolve
from mlx_attn.ui.terminal import count


@dataclass(frozen=True, slots=True)
class VariantCost:
    """A row: a variant with its cost, or with the reason why these sizes do not allow it."""

    name: str
    formula: str
    summary: str
    cost: ModelCost | None
    reason: str | None


def variant_costs(model: Mapping[str, Any], vocab_size: int) -> list[VariantCost]:
    """Every variant at the sizes of a model, in the order of the table."""
    return [_row(name, {"vocab_size": vocab_size, **model}) for name in VARIANTS]


def variants_table(costs: list[VariantCost], preset: str) -> Table:
    """The rows for a terminal; factors are relative to the first row, the standard one."""
    table = Table(title=f"preset {preset}", title_justify="left", box=None, padding=(0, 1))
    table.add_column("variant", ratio=1, overflow="fold")
    for heading in ("parameters", "multiply-adds", "cache floats"):
        table.add_column(heading, justify="right", no_wrap=True)
    standard = costs[0].cost
    for row in costs:
        label = Text.assemble((row.name, "bold"), "\n", (row.reason or row.formula, "dim"))
        table.add_row(label, *_cells(row, standard))
    return table


def _row(name: str, model: Mapping[str, Any]) -> VariantCost:
    variant = VARIANTS[name]
    facts = (name, variant.formula, variant.summary)
    try:
        return VariantCost(*facts, model_cost(config_from({**model, **variant.maps})), None)
    except ConfigError as error:
        return VariantCost(*facts, None, str(error))


def _cells(row: VariantCost, standard: ModelCost | None) -> list[str]:
    if row.cost is None:
        return ["-", "-", "-"]
    keys = ("parameters", "multiply_adds", "cache_floats")
    return [_factor(getattr(row.cost, key), standard and getattr(standard, key)) for key in keys]


def _factor(number: int, base: int | None) -> str:
    return count(number) + (f"\n{number / base:.2f} x" if base else "")


_MAPS = frozenset({"score", "value", "output"})


def variants(preset: str, as_json: bool, **flags: Any) -> None:
    """Show what each variant computes and costs.

    Parameters, multiply-adds per token (forward, at full context) and numbers cached per token when
    decoding, for the whole model at the sizes of a preset. Any size can be changed.
    """
    from mlx_attn.ui.terminal import stdout_console

    given = {key: value for key, value in flags.items() if value is not None}
    settings = resolve({"preset": preset, **given})
    costs = variant_costs(settings.model, find_preset(preset).vocab_size)
    if as_json:
        record = [asdict(cost) for cost in costs]
        click.echo(json.dumps({"preset": preset, "variants": record}, indent=1))
    else:
        stdout_console().print(variants_table(costs, preset))


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
        *options_from(GPTConfig, "Sizes", {}, _MAPS),
    ],
    help=variants.__doc__,
)
