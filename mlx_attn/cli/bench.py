"""`mlx-attn bench`: how fast every variant is, and how near to its matrix products alone."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.options import PREFIX, Named, Section, SectionedCommand, options_from
from mlx_attn.model.config import BLOCKS, PRESETS, GPTConfig, find_preset
from mlx_attn.training.config import DEFAULT_PRESET, TrainConfig, resolve

if TYPE_CHECKING:
    from rich.table import Table

    from mlx_attn.bench.peers import Comparison
    from mlx_attn.bench.speed import Measurement

WORKS = ("train", "forward", "decode")
AXES = ("context", "width", "layers", "batch")
_MAPS = frozenset({"score", "value", "output"})
_RECIPE = {"batch_size", "optimizer", "dtype", "compile"}
_WHAT = "What to measure"


def bench(preset: str, as_json: bool, figure: Path | None, **options: Any) -> None:
    """Measure speed, memory, and where the time goes.

    Training steps, forward passes and decoding of every variant, in turns in one process, on random
    tokens. Beside each stands its floor: the time of its matrix products alone. Figures are medians
    over rounds; compare ratios, and speeds of one run only. docs/performance.md says how to read
    them.
    """
    from mlx_attn.bench.show import peers_table, record, save_bench_figure
    from mlx_attn.cli.info import machine_facts

    what = {key: options.pop(key) for key in ("variants", "part", "scaling", "seconds", "peers")}
    given = {key: value for key, value in options.items() if value is not None}
    settings = resolve({"preset": preset, **given})
    vocab_size = given.get("vocab_size", find_preset(preset).vocab_size)
    model = {**settings.model, "vocab_size": vocab_size}
    measured = _shown(_measured(model, settings.training, **what), as_json)
    compared = list(_compared(model, settings.training, **what))
    if as_json:
        facts = {"machine": machine_facts(), "preset": preset, "settings": given}
        found = {"measurements": record(measured), "peers": record(compared)}
        click.echo(json.dumps(facts | found))
    elif compared:
        _print(peers_table(compared))
    for file in save_bench_figure(measured, figure) if figure else ():
        click.echo(f"wrote {file}", err=True)


def _measured(
    model: Mapping[str, Any],
    training: TrainConfig,
    variants: str,
    part: Sequence[str],
    scaling: str | None,
    seconds: float,
    **_: Any,
) -> Iterator["Measurement"]:
    from mlx_attn.bench.speed import bench, scaled, variant_setups

    if scaling:
        return bench(scaled(model, training, scaling), part or WORKS[:1], seconds)
    setups, refused = variant_setups(model, training, _names(variants))
    for name, reason in refused.items():
        click.echo(f"{name} is left out: {reason}", err=True)
    return bench(setups, part or WORKS, seconds)


def _compared(
    model: Mapping[str, Any],
    training: TrainConfig,
    part: Sequence[str],
    seconds: float,
    peers: bool,
    **_: Any,
) -> Iterator["Comparison"]:
    """What is measured beside each peer; what is not installed is said."""
    from mlx_attn.bench.peers import PEERS, beside_peers
    from mlx_attn.model.config import config_from

    wanted = [peer for peer in PEERS if peers and peer.work in (part or WORKS)]
    for peer in wanted:
        if not peer.installed:
            click.echo(f"{peer.name} is left out: {peer.package} is not installed", err=True)
    return beside_peers(config_from(model), training, wanted, seconds / 3)


def _names(variants: str) -> list[str]:
    from mlx_attn.attention.config import VARIANTS

    return list(VARIANTS) if variants == "all" else variants.split(",")


def _shown(found: Iterable["Measurement"], as_json: bool) -> list["Measurement"]:
    """Everything measured; each kind of work is shown as soon as it is known."""
    from mlx_attn.bench.show import speed_tables

    measured = []
    for _, group in groupby(found, key=lambda row: row.work):
        rows = list(group)
        measured += rows
        for table in () if as_json else speed_tables(rows):
            _print(table)
    return measured


def _print(table: "Table") -> None:
    from mlx_attn.ui.terminal import stdout_console

    stdout_console().print(table, "")


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
        Section(
            ["--scaling"],
            section=_WHAT,
            type=click.Choice(AXES),
            help="instead of variants, the training step at half to four times this size",
        ),
        Section(
            ["--peers"],
            section=_WHAT,
            is_flag=True,
            help="also other programs that are installed: MLX's TransformerEncoder, mlx-lm",
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
