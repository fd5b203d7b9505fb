"""`mlx-attn bench`: the speed and memory of every variant."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any

import click

from mlx_attn.about import PREFIX
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.cli.options import (
    PLUGIN,
    SIZES,
    GroupedOption,
    Named,
    SectionedCommand,
    given,
    options_from,
    preset_option,
)
from mlx_attn.cli.output import note, say
from mlx_attn.model.config import BLOCKS
from mlx_attn.training.config import DEFAULT_PRESET, TrainConfig

_WORKS = ("train", "forward", "decode")
_OF_A_STEP = {"batch_size", "optimizer", "dtype", "compile"}
_NOT_MEASURED = frozenset(TrainConfig.__dataclass_fields__) - _OF_A_STEP


_what = partial(GroupedOption, "What to measure")
_OPTIONS = [
    preset_option("What to measure", DEFAULT_PRESET),
    _what(
        "--variants",
        type=Named(VARIANTS, ","),
        default="all",
        metavar="A,B",
        help="variants; the first is the baseline",
    ),
    _what(
        "--part",
        type=click.Choice(_WORKS),
        multiple=True,
        help="repeatable  [default: all three]",
    ),
    _what(
        "--seconds",
        type=click.IntRange(0, 86400),
        default=60,
        metavar="N",
        help="about how long to measure; at least a few rounds are made",
    ),
    _what(
        "--device",
        type=click.Choice(("cpu", "gpu", "both")),
        metavar="cpu|gpu|both",
        help="measure on the processor, on the GPU, or in turns on both "
        "(default: the GPU if there is one)",
        envvar=PREFIX + "DEVICE",
    ),
    _what("--json", "as_json", is_flag=True, help="as one JSON object"),
    GroupedOption("Sizes", "--block", type=Named(BLOCKS), help="book or modern", rare=True),
    PLUGIN,
    *SIZES,
    *options_from(TrainConfig, "Training step", _NOT_MEASURED),
]

_EXAMPLES = """\b
Examples:
  mlx-attn bench --variants standard,merged --part train
  mlx-attn bench --preset macbook --block modern --json > bench.json
"""


@click.command(cls=SectionedCommand, params=_OPTIONS, epilog=_EXAMPLES)
def command(
    preset: str,
    variants: str,
    part: Sequence[str],
    seconds: int,
    as_json: bool,
    device: str | None,
    **options: Any,
) -> None:
    """Measure the speed and the memory of every variant.

    Training steps, forward passes and decoding, in turns in one process, on random tokens. Figures
    are medians over rounds; compare ratios, and speeds of one run only. docs/performance.md
    explains them.
    """
    from mlx_attn.bench import show, speed
    from mlx_attn.machine.facts import machine_facts
    from mlx_attn.ui.terminal import stdout_console

    settings, devices = given(options), _chosen_devices(device)
    setups = speed.variant_setups(preset, settings, variants, note)
    measured: list[speed.Measurement] = []
    found = speed.bench(setups, part or _WORKS, seconds, devices, note)
    for _, of_one_work in groupby(found, key=lambda row: row.work):
        rows = list(of_one_work)
        measured += rows
        if not as_json:
            stdout_console().print(*show.speed_lines(rows), "", sep="\n")
    if as_json:
        facts = {"machine": machine_facts(), "preset": preset, "settings": settings}
        say(json.dumps({**facts, "measurements": [asdict(row) for row in measured]}))


def _chosen_devices(device: str | None) -> list[str]:
    """Choose the device, and return those to measure: for "both", all that this machine has."""
    from mlx_attn.machine import device as machine_device

    if device != "both":
        if device:
            machine_device.use_device(device)
        return [machine_device.device_name()]
    devices = machine_device.devices()
    if len(devices) == 1:
        note("MLX finds one device here, the cpu: --device both measures that one")
    return devices
