"""The options of `mlx-attn compare`: its own, and those of `train` that hold for all arms."""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.cli.main import INTERRUPTED, check_environment
from mlx_attn.cli.options import TRAIN_OPTIONS, Section, SectionedCommand
from mlx_attn.cli.train import connected, named

if TYPE_CHECKING:
    from mlx_attn.compare.comparison import ComparisonRun
    from mlx_attn.compare.plan import ComparisonConfig
    from mlx_attn.compare.result import Comparison
    from mlx_attn.training.distributed import Distributed

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


DEFAULT_ARMS = ("standard", "merged", "no-query", "no-out-proj")
DEFAULT_SEEDS = 5
RUNS = Path("runs")

_EXAMPLES = """\b
Examples:
  mlx-attn compare                                  four variants, five seeds
  mlx-attn compare --variants standard,no-query --seeds 10
  mlx-attn compare --arm standard --arm 'one head: standard, n_heads=1' --budgets steps
  mlx-attn compare --variants standard,merged --minutes 30
  mlx.launch --hosts a,b $(which python) -m mlx_attn compare       shared between two machines
The same command goes on where it was interrupted; more seeds or arms cost only their own trainings.
"""


def compare(
    variants: str,
    arms: tuple[str, ...],
    jobs: int,
    together: str,
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
    also runs against itself: that is the noise. Under mlx.launch the trainings are shared between
    all processes.
    """
    check_environment()
    protocol = _protocol([*(variants.split(",") if variants else ()), *arms], out, options)
    ranks = connected()
    with named(ranks):
        directory = out or RUNS / protocol.name
        # A plan takes no time, and so makes no trial.
        tried = "off" if dry_run and together == "auto" else together
        comparing = _comparing(protocol, directory, jobs, tried, ranks)
        if not dry_run:
            _run(comparing, directory, as_json, quiet, ranks)
        elif not ranks.rank:
            _show_plan(comparing, as_json)
        # mlx.launch ends all ranks when the first one ends: not before rank 0 has said all.
        ranks.barrier()


def _protocol(
    texts: Sequence[str], out: Path | None, options: dict[str, Any]
) -> "ComparisonConfig":
    """What is compared, and how; what the options still hold is shared by all arms."""
    from mlx_attn.compare.plan import ComparisonConfig, arms_from

    arms = arms_from(texts or DEFAULT_ARMS)
    budgets, scales, tune = (options.pop(key) for key in ("budgets", "scales", "tune"))
    minutes, seeds = (options.pop(key) for key in ("minutes", "seeds"))
    own = {key: options.pop(key) for key in PLAIN}
    return ComparisonConfig(
        arms=arms,
        shared=_shared(options),
        seeds=(0 if minutes else DEFAULT_SEEDS) if seeds is None else seeds,
        minutes=minutes,
        budgets=tuple(budget.strip() for budget in budgets.split(",")),
        scales=scales if tune else (1.0,),
        name=out.name if out else f"compare-{slug([arm.name for arm in arms])}",
        command=_command_line(),
        **own,
    )


def _comparing(
    protocol: "ComparisonConfig", directory: Path, jobs: int, together: str, ranks: "Distributed"
) -> "ComparisonRun":
    from mlx_attn.cli.info import versions
    from mlx_attn.compare.comparison import ComparisonRun
    from mlx_attn.compare.runner import make_runner

    control = protocol.arms[0]
    crew = make_runner(directory, jobs, together, lambda: protocol.settings(control), ranks)
    return ComparisonRun(protocol, crew, versions())


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


def _show_plan(comparing: "ComparisonRun", as_json: bool) -> None:
    from mlx_attn.compare.show import plan_rows
    from mlx_attn.ui.terminal import print_rows, stdout_console

    rows = plan_rows(comparing)
    if as_json:
        click.echo(json.dumps(dict(rows)))
    else:
        print_rows(rows, stdout_console())


def _run(
    comparing: "ComparisonRun", directory: Path, as_json: bool, quiet: bool, ranks: "Distributed"
) -> None:
    """Compare, and on rank 0 show it and say what came of it."""
    from mlx_attn.compare.runner import Concluded
    from mlx_attn.compare.show import display_for
    from mlx_attn.ui.terminal import stderr_console

    comparison = None
    with display_for(stderr_console(), quiet or as_json, ranks.rank) as display:
        try:
            for event in comparing:
                display(event)
                if isinstance(event, Concluded):
                    comparison = event.comparison
        except KeyboardInterrupt:
            display.message("interrupted; finished trainings are kept: the same command goes on")
            click.get_current_context().exit(INTERRUPTED)
    if comparison and not ranks.rank:
        _conclude(comparison, directory, as_json)


def _conclude(comparison: "Comparison", directory: Path, as_json: bool) -> None:
    """The result on stdout, and the report beside the trainings."""
    from mlx_attn.compare.report import write_report
    from mlx_attn.compare.result import save_comparison
    from mlx_attn.compare.show import summary_lines, verdict_tables
    from mlx_attn.ui.terminal import stdout_console

    save_comparison(comparison, directory)
    files = write_report(comparison, directory)
    if as_json:
        click.echo(json.dumps(comparison.as_dict()))
        return
    stdout_console().print(verdict_tables(comparison))
    click.echo("\n".join([*summary_lines(comparison), *map(str, files)]))


command = SectionedCommand(
    "compare",
    callback=compare,
    params=[*COMPARE_OPTIONS],
    help=compare.__doc__,
    epilog=_EXAMPLES,
)
