"""The options of `mlx-attn train`, made from the tables and classes that they set."""

from pathlib import Path
from typing import Any

import click

from mlx_attn.attention import config as attention
from mlx_attn.attention.variants import VARIANTS
from mlx_attn.cli.options import PREFIX, Named, Section, SectionedCommand, options_from
from mlx_attn.model import config as model
from mlx_attn.model.presets import PRESETS
from mlx_attn.training import config as training
from mlx_attn.training.settings import TextConfig

__all__ = ["SHORTHANDS", "TRAIN_OPTIONS", "SectionedCommand"]

SHORTHANDS: dict[str, dict[str, Any]] = {
    "no_out_proj": {"output": "none"},
    "merge_qk": {"score": "merged"},
    "no_query": {"score": "no_query"},
    "no_value": {"value": "identity"},
}
"""Flags that change one map, whatever the variant says of the others."""

_NAMES = {**attention.CHOICES, **model.CHOICES, **training.CHOICES}
_TYPES: dict[str, click.ParamType] = {key: Named(names) for key, names in _NAMES.items()}


def _named(flag: str, names: tuple[str, ...], text: str) -> Section:
    return Section(
        [flag],
        section="What to train",
        type=Named(names),
        metavar="NAME",
        help=text,
        envvar=PREFIX + flag.removeprefix("--").upper(),
    )


def _shorthand(name: str) -> Section:
    (key, value), *_ = SHORTHANDS[name].items()
    flag = "--" + name.replace("_", "-")
    text = f"the same as --{key} {value}, whatever the variant"
    return Section([flag, name], section="What to train", is_flag=True, help=text)


def _run_option(*names: str, text: str, **attributes: Any) -> Section:
    return Section([*names], section="The run", help=text, **attributes)


_PATH = click.Path(path_type=Path)

TRAIN_OPTIONS: list[click.Option] = [
    _named("--variant", tuple(VARIANTS), "attention by name; `mlx-attn variants` lists them"),
    _named("--preset", tuple(PRESETS), f"settings that belong together: {', '.join(PRESETS)}"),
    _named(
        "--block", tuple(model.BLOCKS), f"norm, activation and biases: {' or '.join(model.BLOCKS)}"
    ),
    *(_shorthand(name) for name in SHORTHANDS),
    _run_option(
        "--out", "-o", type=_PATH, metavar="DIR", text="the run's directory (default: in runs/)"
    ),
    _run_option("--name", metavar="NAME", text="the run's name in runs/"),
    _run_option("--overwrite", is_flag=True, text="replace the run that is there"),
    _run_option("--resume", metavar="RUN", text="go on with that run: a directory or a name"),
    _run_option("--init-from", metavar="RUN", text="start with that run's weights and settings"),
    _run_option(
        "--replicas",
        type=click.IntRange(min=2),
        metavar="N",
        text="train N seeds at once, from --seed on, each in a run of its own",
    ),
    _run_option(
        "--together",
        type=click.Choice(("auto", "on", "off")),
        text="replicas as one mapped step (on), in turn (off), or what a short trial finds faster",
    ),
    _run_option("--config", type=_PATH, metavar="FILE", text="settings in a TOML file"),
    _run_option("--dry-run", "-n", is_flag=True, text="show the plan and stop"),
    _run_option("--json", "as_json", is_flag=True, text="one JSON object a line on stdout"),
    _run_option("--quiet", "-q", is_flag=True, text="no progress"),
    *options_from(TextConfig, "Text", _TYPES, frozenset()),
    *options_from(model.GPTConfig, "Model", _TYPES, frozenset({"vocab_size"})),
    *options_from(training.TrainConfig, "Training", _TYPES, frozenset()),
]
