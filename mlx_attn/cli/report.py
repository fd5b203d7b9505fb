"""`mlx-attn report`: what a comparison found, as a page and as Markdown."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mlx_attn.compare.result import Comparison

_PATH = click.Path(path_type=Path)

_EXAMPLES = """\b
Examples:
  mlx-attn report runs/compare-standard-merged
  mlx-attn report runs/compare-standard-merged --figures figures/
  mlx-attn report compare-standard-merged --markdown > answer.md
"""


@click.command(epilog=_EXAMPLES)
@click.argument("directory", metavar="DIR", type=_PATH)
@click.option("--figures", type=_PATH, metavar="DIR", help="Write figures as SVG and PNG.")
@click.option("--markdown", is_flag=True, help="Print Markdown, and write no report.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and write no report.")
def command(directory: Path, figures: Path | None, markdown: bool, as_json: bool) -> None:
    """Show what a comparison found.

    DIR is a comparison's directory, or its name in runs/. Its report is written there, as
    report.html, one page that needs no network, and as report.md.
    """
    from mlx_attn.compare.result import read_comparison

    if markdown and as_json:
        raise click.UsageError("--markdown and --json both print to stdout: choose one")
    directory = _found(directory)
    comparison = read_comparison(directory)
    files = _figures(comparison, figures)
    if as_json:
        click.echo(json.dumps(comparison.as_dict()))
    elif markdown:
        _print_markdown(comparison)
    else:
        files += _report(comparison, directory)
    for file in files:
        click.echo(f"wrote {file}", err=True)


def _found(directory: Path) -> Path:
    """The directory, or that of the name in runs/."""
    from mlx_attn.runs import RUNS

    named = RUNS / directory
    return named if named.is_dir() and not directory.exists() else directory


def _figures(comparison: "Comparison", directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    from mlx_attn.compare.report import save_figures

    return save_figures(comparison, directory)


def _print_markdown(comparison: "Comparison") -> None:
    from mlx_attn.compare.report import as_markdown, report_of

    click.echo(as_markdown(report_of(comparison)), nl=False)


def _report(comparison: "Comparison", directory: Path) -> list[Path]:
    """Show the answer, and write the report; returns the paths."""
    from mlx_attn.compare.report import summary_lines, verdict_tables, write_report
    from mlx_attn.ui.terminal import stdout_console

    stdout_console().print(verdict_tables(comparison))
    for line in summary_lines(comparison):
        click.echo(line)
    return write_report(comparison, directory)
