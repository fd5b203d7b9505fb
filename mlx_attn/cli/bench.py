"""`mlx-attn bench`: how fast every variant is, and how near to its matrix products alone."""

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.options import PREFIX, Named, Section, SectionedCommand, options_from
from mlx_attn.model.config import BLOCKS, GPTConfig
from mlx_attn.model.presets import PRESETS, find_preset
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.settings import DEFAULT_PRESET, resolve

if TYPE_CHECKING:
    from mlx_attn.lab.bench.measure import Measurement

WORKS = ("train", "forward", "decode")
_MAPS = frozenset({"score", "value", "output"})
_RECIPE = {"batch_size", "optimizer", "dtype", "compile"}
_WHAT = "What to measure"


def bench(
    preset: str, variants: str, part: tuple[str, ...], seconds: float, **options: Any
) -> None:
    """Measure speed, memory, and where the time goes.

    Training steps, forward passes and decoding of every variant, in turns in one process, on random
    tokens. Beside each stands its floor: the time of its matrix products alone. Figures are medians
    over rounds; compare ratios, and speeds of one run only. docs/performance.md says how to read
    them.
    """
    from mlx_attn.lab.bench import measure
    from mlx_attn.show.bench import record, save_bench_figure
    from mlx_attn.show.machine import machine_facts

    as_json, figure = options.pop("as_json"), options.pop("figure")
    given = {key: value for key, value in options.items() if value is not None}
    settings = resolve({"preset": preset, **given})
    vocab_size = find_preset(preset).vocab_size
    configs, refused = measure.variant_configs(settings.model, vocab_size, _names(variants))
    for name, reason in refused.items():
        click.echo(f"{name} is left out: {reason}", err=True)
    works = part or WORKS
    measured = _shown(measure.bench(configs, settings.training, works, seconds), as_json)
    if as_json:
        facts = {"machine": machine_facts(), "preset": preset, "settings": given}
        click.echo(json.dumps({**facts, "measurements": record(measured), "refused": refused}))
    for file in save_bench_figure(measured, figure) if figure else ():
        click.echo(f"wrote {file}", err=True)


def _names(variants: str) -> list[str]:
    from mlx_attn.attention.variants import VARIANTS

    return list(VARIANTS) if variants == "all" else variants.split(",")


def _shown(found: Iterable["Measurement"], as_json: bool) -> list["Measurement"]:
    """Everything measured; each kind of work is shown as soon as it is known."""
    from mlx_attn.show.bench import speed_tables
    from mlx_attn.show.terminal import stdout_console

    console, measured = stdout_console(), []
    for _, group in groupby(found, key=lambda row: row.work):
        rows = list(group)
        measured += rows
        for table in () if as_json else speed_tables(rows):
            console.print(table, "")
    return measured


_EXAMPLES = """\b
Examples:
  mlx-attn bench --variants standard,merged --part train
  mlx-attn bench --preset macbook --block modern --json > bench.json
"""

command = SectionedCommand(
    "bench",
    callback=bench,
    epilog=_EXAMPLES,
    params=[
        Section(
            ["--preset"],
            section=_WHAT,
            type=Named(PRESETS),
            default=DEFAULT_PRESET,
            show_default=True,
            metavar="NAME",
            help=f"sizes by name: {', '.join(PRESETS)}",
            envvar=PREFIX + "PRESET",
        ),
        Section(
            ["--variants"],
            section=_WHAT,
            default="all",
            show_default=True,
            metavar="NAMES",
            help="names with commas between them; the first one is what others are compared with",
        ),
        Section(
            ["--part"],
            section=_WHAT,
            type=click.Choice(WORKS),
            multiple=True,
            help="may be given several times  [default: all three]",
        ),
        Section(
            ["--seconds"],
            section=_WHAT,
            type=click.FloatRange(min=0),
            default=60.0,
            show_default=True,
            metavar="X",
            help="about how long to measure; at least a few rounds are made",
        ),
        Section(["--json", "as_json"], section=_WHAT, is_flag=True, help="as one JSON object"),
        Section(
            ["--figure"],
            section=_WHAT,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="also draw FILE.svg and FILE.png",
        ),
        Section(
            ["--block"], section="Sizes", type=Named(BLOCKS), metavar="NAME", help="book or modern"
        ),
        *options_from(GPTConfig, "Sizes", {}, _MAPS),
        *[
            o
            for o in options_from(TrainConfig, "Training step", {}, frozenset())
            if o.name in _RECIPE
        ],
    ],
    help=bench.__doc__,
)
