"""`mlx-attn report`: a comparison's results, as a page and as Markdown."""

from pathlib import Path

import click

from mlx_attn.cli.options import UserPath
from mlx_attn.cli.output import emit, note, say

_PATH = UserPath()

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
    """Show the results of a comparison.

    DIR is a comparison's directory, or its name in runs/. Its report is written there, as
    report.html, one page that needs no network, and as report.md.
    """
    from mlx_attn.comparison import report, show
    from mlx_attn.comparison.result import read_comparison
    from mlx_attn.runs import RUNS

    if markdown and as_json:
        raise click.UsageError("--markdown and --json both print to stdout: choose one")
    named = RUNS / directory
    directory = named if named.is_dir() and not directory.exists() else directory
    comparison = read_comparison(directory)
    files = report.save_figures(comparison, figures) if figures else []
    if markdown:
        say(report.as_markdown(comparison), nl=False)
    else:
        emit(comparison.as_dict(), as_json, lambda: show.comparison_parts(comparison))
        files += [] if as_json else report.write_report(comparison, directory)
    for file in files:
        note(f"wrote {file}")
