"""`mlx-attn claims`: published claims about attention, tested here."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.main import INTERRUPTED
from mlx_attn.cli.options import TRIAL_OPTIONS, check_environment
from mlx_attn.cli.processes import connect, prefix_errors

if TYPE_CHECKING:
    from mlx_attn.comparison.claim import Claim, Finding
    from mlx_attn.comparison.runner import ComparisonEvent, Runner
    from mlx_attn.comparison.show import Display
    from mlx_attn.training.config import Settings
    from mlx_attn.training.distributed import Distributed

_EXAMPLES = """\b
Examples:
  mlx-attn claims list
  mlx-attn claims run query-not-needed-one-head
  mlx-attn claims run --all --seeds 8
"""


@click.group(invoke_without_command=True, epilog=_EXAMPLES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Test published claims about attention.

    A claim holds, does not hold, or is undecided: here, at the size of these trainings. Without a
    subcommand: the list of claims.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_claims)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def list_claims(as_json: bool = False) -> None:
    """Show the claims: what each says, who says it, and how it is tested."""
    from mlx_attn.comparison.claim import CLAIMS
    from mlx_attn.comparison.show import claims_table
    from mlx_attn.ui.terminal import stdout_console

    if as_json:
        keys = ("name", "statement", "source", "protocol")
        rows = [{key: getattr(claim, key) for key in keys} for claim in CLAIMS.values()]
        click.echo(json.dumps({"claims": rows}))
    else:
        stdout_console().print(claims_table(CLAIMS.values()))


@command.command("run", epilog=_EXAMPLES)
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "every", is_flag=True, help="All claims.")
@click.option("--seeds", type=int, default=5, show_default=True, metavar="N", help="Seeds.")
@click.option("--steps", type=int, metavar="N", help="Steps of every training (default: 200).")
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("runs/claims"),
    show_default=True,
    metavar="DIR",
    help="Where trainings, findings and reports go.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a claim.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def run(names: tuple[str, ...], every: bool, seeds: int, steps: int | None, **running: Any) -> None:
    """Test claims, and say of each whether it holds.

    Claims share their trainings: what one has trained another does not train again. The same
    command continues an interrupted one. Under mlx.launch the trainings are shared between all
    processes.
    """
    from mlx_attn.comparison.claim import CLAIMS, find_claim

    check_environment()
    if bool(names) == every:
        raise click.UsageError("name claims, or --all; `mlx-attn claims list` shows them")
    claims = [find_claim(name) for name in names] or list(CLAIMS.values())
    ranks = connect()
    with prefix_errors(ranks):
        _test(claims, ranks, seeds, {"steps": steps} if steps else {}, **running)
        # mlx.launch ends all ranks when the first one exits: wait until the last finding is kept.
        ranks.barrier()


run.params += TRIAL_OPTIONS


def _test(
    claims: "Sequence[Claim]",
    ranks: "Distributed",
    seeds: int,
    settings: dict[str, Any],
    out: Path,
    as_json: bool,
    quiet: bool,
    **running: Any,
) -> None:
    """Test claims, show what happens, and on rank 0 keep what is found."""
    from mlx_attn.comparison.runner import KEPT, make_runner
    from mlx_attn.comparison.show import Display
    from mlx_attn.ui.terminal import stderr_console

    example = partial(_first_settings, claims, seeds, settings)
    runner = make_runner(out, example=example, ranks=ranks, **running)
    with Display(stderr_console(), quiet or as_json, ranks.rank) as display:
        try:
            for name, event in _events(claims, runner, seeds, settings, display):
                if not ranks.rank:
                    _keep(event, out / name, as_json)
        except KeyboardInterrupt:
            display.message(f"interrupted; {KEPT}")
            click.get_current_context().exit(INTERRUPTED)


def _first_settings(
    claims: "Sequence[Claim]", seeds: int, settings: dict[str, Any]
) -> "Settings | None":
    """Settings of the first training; None where nothing is trained."""
    configs = (claim.config(seeds, settings) for claim in claims if claim.arms)
    return next((config.settings(config.arms[0]) for config in configs), None)


def _events(
    claims: "Sequence[Claim]",
    runner: "Runner",
    seeds: int,
    settings: dict[str, Any],
    display: "Display",
) -> "Iterator[tuple[str, ComparisonEvent | Finding]]":
    """The claims' names with the events of their tests, which are shown, and their findings."""
    from mlx_attn.cli.info import versions
    from mlx_attn.comparison.claim import Finding, run_claim

    flags = "".join(f" --{key} {value}" for key, value in settings.items())
    for claim in claims:
        display.message(f"{claim.name}: {claim.protocol}")
        typed = f"mlx-attn claims run {claim.name} --seeds {seeds}{flags}"
        for event in run_claim(claim, runner, versions(), typed, seeds, settings):
            if not isinstance(event, Finding):
                display(event)
            yield claim.name, event


def _keep(found: "ComparisonEvent | Finding", directory: Path, as_json: bool) -> None:
    """Write a comparison and its report, or write and show a finding; of other events nothing."""
    from mlx_attn.comparison.claim import Finding
    from mlx_attn.comparison.report import write_report
    from mlx_attn.comparison.result import Comparison, save_comparison
    from mlx_attn.comparison.show import finding_lines
    from mlx_attn.files import write_text
    from mlx_attn.ui.terminal import stdout_console

    if isinstance(found, Comparison):
        save_comparison(found, directory)
        write_report(found, directory)
    if not isinstance(found, Finding):
        return
    content = json.dumps(asdict(found), indent=1, allow_nan=False) + "\n"
    write_text(directory.parent / "findings" / f"{directory.name}.json", content)
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        stdout_console().print(finding_lines(found))
