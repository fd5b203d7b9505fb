"""`mlx-attn probe`: the attention maps of a trained model, and its heads in numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.main import INTERRUPTED
from mlx_attn.cli.memory import dry_run_option, show_plan
from mlx_attn.cli.options import OVERWRITE_PAGE, UserPath, takes_plugins
from mlx_attn.cli.output import emit, note
from mlx_attn.cli.sample import run_argument, standard_input
from mlx_attn.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from mlx_attn.probe.tracks import Track
    from mlx_attn.run_directory import Run

_PATH = UserPath()


_EXAMPLES = """\b
Examples:
  mlx-attn probe --figures figures/
  mlx-attn probe runs/tiny-merged --prompt "Anna saw Hugo, and Hugo saw"
  mlx-attn probe runs/merged --track --against runs/separate --figures figures/
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@run_argument
@click.option("--prompt", "-p", metavar="TEXT", help="Text to read; - reads stdin.")
@click.option(
    "--windows",
    default=4,
    show_default=True,
    help="Without a prompt, windows of the validation text to average over.",
)
@click.option(
    "--html", type=_PATH, metavar="FILE", help="Write the page of 'open', unfolded at the heads."
)
@click.option("--overwrite", is_flag=True, help=OVERWRITE_PAGE)
@click.option("--figures", type=_PATH, metavar="DIR", help="Write figures as SVG and PNG.")
@click.option("--track", is_flag=True, help="Show what train --track recorded instead.")
@click.option("--against", metavar="RUN", help="With --track, a run to compare with.")
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, run: str | None, **options: Any) -> None:
    """Show each head's attention and matrices in numbers.

    RUN is a directory or a name in runs/; without it, the latest finished one. To see a head at
    work, on any text, use 'mlx-attn open'.
    """
    from mlx_attn.runs import find_run

    try:
        if options["track"]:
            _show_track(find_run(run), **options)
        elif options["against"]:
            raise click.UsageError("--against compares tracked trainings: add --track")
        elif options["dry_run"]:
            _show_plan(find_run(run), **options)
        else:
            _show_probe(find_run(run), **options)
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def _show_plan(run: "Run", prompt: str | None, windows: int, as_json: bool, **_: Any) -> None:
    from mlx_attn.probe.heads import probe_memory

    texts = windows if prompt is None else 1
    show_plan(run, "probing", probe_memory(run.config, texts), as_json)


def _show_probe(
    run: "Run",
    prompt: str | None,
    windows: int,
    html: Path | None,
    overwrite: bool,
    figures: Path | None,
    as_json: bool,
    **_: Any,
) -> None:
    from mlx_attn.probe import heads, show

    text = standard_input() if prompt == "-" else prompt
    found = heads.probe(run.load_model(), _tokens(run, text, windows))
    files = [_write_page(run, text, windows, html, overwrite)] if html else []
    files += [str(file) for file in show.save_figures(found, figures)] if figures else []
    record = {"run": str(run.path), **show.record(found), "files": files}
    emit(record, as_json, lambda: [show.heads_table(found), *show.legend(found)])
    for file in () if as_json else files:
        note(f"wrote {file}")


def _tokens(run: "Run", text: str | None, windows: int) -> "np.ndarray":
    from mlx_attn.probe import heads
    from mlx_attn.sampling.documents import document_start
    from mlx_attn.text.show import download_lines

    if text is None:
        return heads.validation_windows(run, windows, download_lines(note))
    tokenizer, context_length = run.load_tokenizer(), run.config.context_length
    tokens = heads.prompt_tokens(text, tokenizer, context_length, document_start(run))
    given = len(tokenizer.encode(text))
    if tokens.shape[1] < given:
        note(f"the model reads the last {tokens.shape[1]} of {given} tokens: more do not fit")
    return tokens


def _write_page(run: "Run", text: str | None, windows: int, path: Path, overwrite: bool) -> str:
    from mlx_attn.explore.page import write_page

    texts, count = (None, windows) if text is None else ([text], 0)
    return str(write_page([run], texts, path, overwrite=overwrite, windows=count)[0])


def _show_track(
    run: "Run",
    against: str | None,
    prompt: str | None,
    html: Path | None,
    figures: Path | None,
    as_json: bool,
    **_: Any,
) -> None:
    from mlx_attn.probe import show, tracks
    from mlx_attn.runs import find_run

    if html:
        raise ConfigError("--track shows curves, which --figures draws: leave out --html")
    other = find_run(against) if against else None
    tracked = [tracks.read_track(one) for one in (run, other) if one]
    pair = _pair(run, other, prompt) if other else None
    files = [str(f) for f in show.save_tracks(tracked, pair, figures)] if figures else []
    drift = show.track_record(pair) if pair else None
    drift = drift and {"steps": drift["steps"], **drift["drift"]}
    records = [show.track_record(track) for track in tracked]
    shown = (*tracked, *([pair] if pair else ()))
    record = {"tracks": records, "drift": drift, "files": files}
    emit(record, as_json, lambda: map(show.track_table, shown))
    for file in () if as_json else files:
        note(f"wrote {file}")


def _pair(run: "Run", other: "Run", prompt: str | None) -> "Track | None":
    """Return the drift between two runs; None, with the reason on stderr, without saved weights."""
    from mlx_attn.errors import RunError
    from mlx_attn.probe import tracks
    from mlx_attn.training.tracking import TRACKED_TEXTS

    try:
        text = standard_input() if prompt == "-" else prompt
        return tracks.pair_drift(run, other, _tokens(run, text, TRACKED_TEXTS))
    except RunError as error:
        note(str(error))
        return None
