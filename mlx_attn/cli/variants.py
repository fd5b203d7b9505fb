"""`mlx-attn variants`: what each variant computes and costs at a preset's sizes."""

import json
from dataclasses import asdict
from typing import Any

import click

from mlx_attn.cli.options import PREFIX, Named, Section, SectionedCommand, options_from
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.presets import PRESETS, find_preset
from mlx_attn.training.settings import DEFAULT_PRESET, resolve

_MAPS = frozenset({"score", "value", "output"})


def variants(preset: str, as_json: bool, **flags: Any) -> None:
    """Show what each variant computes and costs.

    Parameters, multiply-adds per token (forward, at full context) and numbers cached per token when
    decoding, for the whole model at the sizes of a preset. Any size can be changed.
    """
    from mlx_attn.show.terminal import stdout_console
    from mlx_attn.show.variants import variant_costs, variants_table

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
