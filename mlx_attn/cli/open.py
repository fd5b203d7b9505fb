"""`mlx-attn open`: a page that runs a trained model in the browser."""

import webbrowser
from pathlib import Path

import click

from mlx_attn.cli.options import UserPath, takes_plugins
from mlx_attn.cli.output import emit, note
from mlx_attn.cli.sample import complete_run, prompt_option
from mlx_attn.errors import ConfigError

_EXAMPLES = """\b
Examples:
  mlx-attn open
  mlx-attn open runs/tiny-standard --prompt "One rainy day, patient Hugo was"
  mlx-attn open runs/tiny-standard runs/tiny-merged --html both.html --no-browser
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@click.argument("runs", nargs=-1, metavar="[RUN] [RUN]", shell_complete=complete_run)
@prompt_option(help="Text to begin with; - reads stdin.")
@click.option(
    "--html",
    "--out",
    "-o",
    type=UserPath(),
    metavar="FILE",
    help="Where the page goes. [default: explore.html in the first run, or runs/home.html]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    help="How weights are kept: float16 halves the file and rounds them. [default: float32; in the "
    "list of runs float16]",
)
@click.option(
    "--overwrite", is_flag=True, help="Let --html replace a file that is no page of this program."
)
@click.option("--no-browser", is_flag=True, help="Write the page, and do not open it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    runs: tuple[str, ...],
    prompt: str | None,
    html: Path | None,
    dtype: str | None,
    overwrite: bool,
    no_browser: bool,
    as_json: bool,
) -> None:
    """Write a page that holds a trained model and runs it, and open it.

    RUN is a directory or a name in runs/; two runs read one text. The page is one file that needs
    no network: type a text, follow it step by step through attention, switch parts off, and let the
    model continue. Without RUN, it lists all runs in runs/ with their losses: click one to open it,
    or tick two to compare them. If there is only one, or with --prompt, it shows the latest.
    """
    from mlx_attn.explore import page
    from mlx_attn.run_directory import find_runs
    from mlx_attn.runs import RUNS, load_run

    if len(runs) > 2:
        raise click.UsageError(f"a page shows two runs at most, and these are {len(runs)}")
    if prompt == "":
        raise ConfigError("the prompt is empty: give at least one character")
    if runs or prompt is not None or len(find_runs(RUNS)) < 2:
        shown = [load_run(name) for name in runs or (None,)]
        texts = None if prompt is None else [prompt]
        path = page.write_page(shown, texts, html, dtype or "float32", overwrite)
    else:
        path = page.write_home(html, dtype or "float16", overwrite)
    n_bytes = path.stat().st_size
    if as_json:
        emit({"path": path, "bytes": n_bytes}, as_json)
    else:
        note(f"wrote {path} ({n_bytes / 1e6:.1f} MB)")
    if not no_browser:
        webbrowser.open(path.resolve().as_uri())
