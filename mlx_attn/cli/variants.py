"""`mlx-attn variants`: the table of variants with their costs."""

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.attention.config import MAPS, VARIANTS
from mlx_attn.cli.options import (
    Named,
    SectionedCommand,
    grouped,
    options_from,
    plugin_option,
    preset_option,
)
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig, config_from, find_preset
from mlx_attn.training.config import resolve

if TYPE_CHECKING:
    from rich.table import Table

_COSTS = ("parameters", "multiply_adds", "cache_bytes")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def variants(
    preset: str, as_json: bool, tokens: int | None, batch: int, dtype: str, **flags: Any
) -> None:
    """Show what each variant computes and costs.

    Parameters, multiply-adds per token (forward, at full context), numbers cached per token when
    decoding, and the bytes of the whole cache, for the model at the sizes of a preset. Any size can
    be changed.
    """
    from mlx_attn.ui.terminal import stdout_console

    given = {key: value for key, value in flags.items() if value is not None}
    model = resolve({"preset": preset, **given}).model
    model = {"vocab_size": find_preset(preset).vocab_size, **model}
    length = tokens or config_from(model).context_length
    # The windows that were asked for win over those of a variant.
    windows = {key: given[key] for key in ("window", "global_every") if key in given}

    def row(name: str) -> dict[str, Any]:
        return _row(name, {**model, **VARIANTS[name].settings, **windows}, length, batch, dtype)

    rows = [row(name) for name in VARIANTS]
    if as_json:
        click.echo(json.dumps({"preset": preset, "variants": rows}, indent=1))
    else:
        shape = f"cache of {length} tokens, batch {batch}, {dtype}"
        stdout_console().print(_table(rows, f"preset {preset}, {shape}"))


def _row(name: str, model: dict[str, Any], tokens: int, batch: int, dtype: str) -> dict[str, Any]:
    """A variant with its cost, or with the reason why these sizes do not allow it."""
    from mlx_attn.model.gpt import cache_bytes, model_cost

    variant = VARIANTS[name]
    row = {key: getattr(variant, key) for key in ("name", "group", "formula", "summary")}
    try:
        config = config_from(model)
        cost = asdict(model_cost(config))
        cost["cache_bytes"] = cache_bytes(config, tokens, _BYTES[dtype], batch)
        return {**row, "cost": cost, "reason": None}
    except ConfigError as error:
        return {**row, "cost": None, "reason": str(error)}


def _table(rows: list[dict[str, Any]], title: str) -> "Table":
    """The rows by group for a terminal; factors are relative to the first, the standard one."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column("variant", ratio=1, min_width=16, overflow="fold")
    for heading in ("parameters", "multiply-adds", "cache bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    standard, group = rows[0]["cost"] or {}, rows[0]["group"]
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            table.add_row("", end_section=True)
            table.add_row(Text(group, "italic"))
        label = Text.assemble((row["name"], "bold"), "\n", (row["reason"] or row["formula"], "dim"))
        cost = row["cost"] or {}
        table.add_row(label, *(_cell(cost.get(key), standard.get(key)) for key in _COSTS))
    return table


def _cell(cost: int | None, standard: int | None) -> str:
    from mlx_attn.ui.terminal import count

    if cost is None:
        return "-"
    return count(cost) + (f"\n{cost / standard:.2f} x" if standard else "")


_what = partial(grouped, "What to show")

command = SectionedCommand(
    "variants",
    callback=variants,
    params=[
        preset_option("What to show"),
        _what(
            "--tokens",
            type=click.IntRange(1),
            metavar="N",
            help="tokens in the cache (default: the context length)",
        ),
        _what(
            "--batch",
            type=click.IntRange(1),
            default=1,
            metavar="N",
            help="sequences decoded at once",
        ),
        _what(
            "--dtype",
            type=Named(_BYTES),
            default="float32",
            help=f"numbers of the cache: {', '.join(_BYTES)}",
        ),
        _what("--json", "as_json", is_flag=True, help="as JSON"),
        plugin_option(),
        *options_from(GPTConfig, "Sizes", frozenset(MAPS)),
    ],
    help=variants.__doc__,
)
