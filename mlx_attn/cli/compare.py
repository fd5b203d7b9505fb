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

from mlx_attn.cli.compare_options import COMPARE_OPTIONS, PLAIN
from mlx_attn.cli.environment import check_environment
from mlx_attn.cli.interruption import INTERRUPTED
from mlx_attn.cli.ranks import connected, named
from mlx_attn.cli.train_options import SectionedCommand

if TYPE_CHECKING:
    from mlx_attn.lab.compare.comparing import Comparing
    from mlx_attn.lab.compare.protocol import Protocol
    from mlx_attn.lab.compare.result import Comparison
    from mlx_attn.training.ranks import Ranks

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


def _protocol(texts: Sequence[str], out: Path | None, options: dict[str, Any]) -> "Protocol":
    """What is compared, and how; what the options still hold is shared by all arms."""
    from mlx_attn.lab.compare.arms import arms_from
    from mlx_attn.lab.compare.protocol import Protocol

    arms = arms_from(texts or DEFAULT_ARMS)
    budgets, scales, tune = (options.pop(key) for key in ("budgets", "scales", "tune"))
    minutes, seeds = (options.pop(key) for key in ("minutes", "seeds"))
    own = {key: options.pop(key) for key in PLAIN}
    return Protocol(
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
    protocol: "Protocol", directory: Path, jobs: int, together: str, ranks: "Ranks"
) -> "Comparing":
    from mlx_attn.lab.compare.comparing import Comparing
    from mlx_attn.lab.compare.crews import crew_for
    from mlx_attn.show.machine import versions

    control = protocol.arms[0]
    crew = crew_for(directory, jobs, together, lambda: protocol.settings(control), ranks)
    return Comparing(protocol, crew, versions())


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


def _run(
    comparing: "Comparing", directory: Path, as_json: bool, quiet: bool, ranks: "Ranks"
) -> None:
    """Compare, and on rank 0 show it and say what came of it."""
    from mlx_attn.lab.compare.events import Concluded
    from mlx_attn.show.comparing import display_for
    from mlx_attn.show.terminal import stderr_console

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


command = SectionedCommand(
    "compare",
    callback=compare,
    params=[*COMPARE_OPTIONS],
    help=compare.__doc__,
    epilog=_EXAMPLES,
)
