"""The options of `mlx-attn compare`: its own, and those of `train` that hold for all arms."""

from pathlib import Path
from typing import Any

import click

from mlx_attn.cli.options import Section
from mlx_attn.cli.train_options import TRAIN_OPTIONS

_OWN = {"variant", "seed", "init_seed", "eval_every", "save_every", "log_every", "track"}
_OWN |= {"patience", "epochs", "minutes"}
"""Settings that a comparison makes itself."""

_SHARED_SECTIONS = ("Text", "Model", "Training")

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors of the learning rates that are tried first; more where the best is the last of them."""


class Numbers(click.ParamType):
    """Numbers between commas."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """The numbers."""
        try:
            return value if isinstance(value, tuple) else tuple(map(float, value.split(",")))
        except ValueError:
            self.fail(f"'{value}' must be numbers between commas, such as 0.5,1,2", param, ctx)


def _option(*names: str, text: str, section: str = "What to compare", **attributes: Any) -> Section:
    return Section([*names], section=section, help=text, **attributes)


PLAIN = ("delta", "confidence", "tuning_seeds", "noise", "question")
"""Options that the protocol takes as they are."""

_SURE, _RUN = "How sure", "The run"
_OWN_OPTIONS: list[click.Option] = [
    _option("--variants", default="", metavar="A,B", text="variants; the first is the control"),
    _option(
        "--arm",
        "arms",
        multiple=True,
        metavar="TEXT",
        text="an arm with settings: 'one head: merged, n_heads=1'; may be given several times",
    ),
    _option("--budgets", default="steps,seconds,params", metavar="LIST", text="what is equal"),
    _option("--question", default="", metavar="TEXT", text="a sentence for the report's head"),
    _option("--seeds", type=int, metavar="N", section=_SURE, text="seeds (default: 5)"),
    _option(
        "--minutes",
        type=float,
        default=0.0,
        metavar="X",
        section=_SURE,
        text="as many seeds as so much time has room for",
    ),
    _option(
        "--delta",
        type=float,
        default=0.02,
        show_default=True,
        metavar="NATS",
        section=_SURE,
        text="differences smaller than this count as none",
    ),
    _option(
        "--confidence",
        type=float,
        default=0.95,
        show_default=True,
        metavar="X",
        section=_SURE,
        text="of the intervals",
    ),
    _option(
        "--tune/--no-tune", default=True, section=_SURE, text="search each arm's learning rate"
    ),
    _option(
        "--scales",
        type=Numbers(),
        default=SCALES,
        metavar="LIST",
        section=_SURE,
        text="factors of the learning rates to begin with",
    ),
    _option(
        "--tuning-seeds",
        type=int,
        default=2,
        show_default=True,
        metavar="N",
        section=_SURE,
        text="seeds that each factor is tried on",
    ),
    _option("--noise/--no-noise", default=True, section=_SURE, text="the control against itself"),
    _option(
        "--out",
        "-o",
        type=click.Path(path_type=Path),
        metavar="DIR",
        section=_RUN,
        text="where trainings and the report go (default: in runs/)",
    ),
    _option(
        "--jobs",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        section=_RUN,
        text="trainings at once (0: one for every core, one on a GPU)",
    ),
    _option(
        "--together",
        type=click.Choice(("auto", "on", "off")),
        default="auto",
        show_default=True,
        section=_RUN,
        text="trainings that differ in seed and rate as one mapped step: on, off, or on a GPU what "
        "a short trial finds faster",
    ),
    _option("--dry-run", "-n", is_flag=True, section=_RUN, text="show the plan and stop"),
    _option("--json", "as_json", is_flag=True, section=_RUN, text="the result as one JSON object"),
    _option("--quiet", "-q", is_flag=True, section=_RUN, text="no progress"),
]

COMPARE_OPTIONS: list[click.Option] = [
    *_OWN_OPTIONS,
    *(option for option in TRAIN_OPTIONS if option.name in ("preset", "block")),
    *(
        option
        for option in TRAIN_OPTIONS
        if getattr(option, "section", "") in _SHARED_SECTIONS and option.name not in _OWN
    ),
]
