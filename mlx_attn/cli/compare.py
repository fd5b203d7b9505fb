"""`mlx-attn compare`: which form of attention is better, with error bars."""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.cli.environment import check_environment
from mlx_attn.cli.interruption import INTERRUPTED
from mlx_attn.cli.options import Section, SectionedCommand
from mlx_attn.cli.train_options import TRAIN_OPTIONS

if TYPE_CHECKING:
    from mlx_attn.lab.compare.comparing import Comparing
    from mlx_attn.lab.compare.result import Comparison

_OWN = {"variant", "seed", "init_seed", "eval_every", "save_every", "log_every", "track"}
_OWN |= {"patience", "epochs", "minutes"}
"""Settings that a comparison makes itself."""

DEFAULT_ARMS = ("standard", "merged", "no-query", "no-out-proj")
DEFAULT_SEEDS = 5
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors of the learning rates that are tried first; more where the best is the last of them."""

RUNS = Path("runs")

_EXAMPLES = """\b
Examples:
  mlx-attn compare                                  four variants, five seeds
  mlx-attn compare --variants standard,no-query --seeds 10
  mlx-attn compare --arm standard --arm 'one head: standard, n_heads=1' --budgets steps
  mlx-attn compare --variants standard,merged --minutes 30
The same command goes on where it was interrupted; more seeds or arms cost only their own trainings.
"""


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


def compare(
    variants: str,
    arms: tuple[str, ...],
    budgets: str,
    minutes: float,
    seeds: int | None,
    tune: bool,
    scales: tuple[float, ...],
    jobs: int,
    out: Path | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Say which form of attention is better, and how sure that is.

    Every arm gets its own learning rate, tuned on seeds of its own; then all arms are trained with
    the same fresh seeds, batches and validation windows, and differences are judged in pairs. Three
    budgets side by side: equal steps, equal seconds, equal parameters. The control, the first arm,
    also runs against itself: that is the noise.
    """
    from mlx_attn.lab.compare.arms import arms_from
    from mlx_attn.lab.compare.comparing import Comparing
    from mlx_attn.lab.compare.crew import Crew
    from mlx_attn.lab.compare.protocol import Protocol
    from mlx_attn.lab.compare.store import Store
    from mlx_attn.show.machine import versions

    check_environment()
    own = {key: options.pop(key) for key in _PLAIN}
    texts = [*(variants.split(",") if variants else ()), *arms]
    chosen = arms_from(texts or DEFAULT_ARMS)
    directory = out or RUNS / f"compare-{slug([arm.name for arm in chosen])}"
    protocol = Protocol(
        arms=chosen,
        shared=_shared(options),
        seeds=(0 if minutes else DEFAULT_SEEDS) if seeds is None else seeds,
        minutes=minutes,
        budgets=tuple(budget.strip() for budget in budgets.split(",")),
        scales=scales if tune else (1.0,),
        name=directory.name,
        command=_command_line(),
        **own,
    )
    comparing = Comparing(protocol, Crew(Store(directory / "trainings"), jobs), versions())
    if dry_run:
        _show_plan(comparing, as_json)
    else:
        _run(comparing, directory, as_json, quiet)


def slug(names: Sequence[str]) -> str:
    """Names as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")[:60]


def _shared(options: dict[str, Any]) -> dict[str, Any]:
    """The settings that all arms share: those of the environment below those of flags."""
    given = {key: value for key, value in options.items() if value is not None}
    source = click.get_current_context().get_parameter_source
    return dict(
        sorted(given.items(), key=lambda item: source(item[0]) == ParameterSource.COMMANDLINE)
    )


def _command_line() -> str:
    """What was typed, to reproduce it."""
    return shlex.join(["mlx-attn", *sys.argv[1:]])


def _show_plan(comparing: "Comparing", as_json: bool) -> None:
    from mlx_attn.show.comparing import plan_rows
    from mlx_attn.show.terminal import print_rows, stdout_console

    rows = plan_rows(comparing)
    if as_json:
        click.echo(json.dumps(dict(rows)))
    else:
        print_rows(rows, stdout_console())


def _run(comparing: "Comparing", directory: Path, as_json: bool, quiet: bool) -> None:
    """Compare, show it, and say what came of it."""
    from mlx_attn.lab.compare.events import Concluded
    from mlx_attn.show.comparing import display_for
    from mlx_attn.show.terminal import stderr_console

    comparison = None
    with display_for(stderr_console(), quiet or as_json) as display:
        try:
            for event in comparing:
                display(event)
                if isinstance(event, Concluded):
                    comparison = event.comparison
        except KeyboardInterrupt:
            display.message("interrupted; finished trainings are kept: the same command goes on")
            click.get_current_context().exit(INTERRUPTED)
    if comparison:
        _conclude(comparison, directory, as_json)


def _conclude(comparison: "Comparison", directory: Path, as_json: bool) -> None:
    """The result on stdout, and the report beside the trainings."""
    from mlx_attn.lab.compare.reading import save_comparison
    from mlx_attn.show.report import summary_lines, verdict_tables, write_report
    from mlx_attn.show.terminal import stdout_console

    save_comparison(comparison, directory)
    files = write_report(comparison, directory)
    if as_json:
        click.echo(json.dumps(comparison.as_dict()))
        return
    stdout_console().print(verdict_tables(comparison))
    click.echo("\n".join([*summary_lines(comparison), *map(str, files)]))


def _option(*names: str, text: str, section: str = "What to compare", **attributes: Any) -> Section:
    return Section([*names], section=section, help=text, **attributes)


_PLAIN = ("delta", "confidence", "tuning_seeds", "noise", "question")
"""Options that the protocol takes as they are."""

_SURE, _RUN = "How sure", "The run"
_OPTIONS: list[click.Option] = [
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
    _option("--dry-run", "-n", is_flag=True, section=_RUN, text="show the plan and stop"),
    _option("--json", "as_json", is_flag=True, section=_RUN, text="the result as one JSON object"),
    _option("--quiet", "-q", is_flag=True, section=_RUN, text="no progress"),
]

_SHARED_SECTIONS = ("Text", "Model", "Training")

command = SectionedCommand(
    "compare",
    callback=compare,
    params=[
        *_OPTIONS,
        *(option for option in TRAIN_OPTIONS if option.name in ("preset", "block")),
        *(
            option
            for option in TRAIN_OPTIONS
            if getattr(option, "section", "") in _SHARED_SECTIONS and option.name not in _OWN
        ),
    ],
    help=compare.__doc__,
    epilog=_EXAMPLES,
)
