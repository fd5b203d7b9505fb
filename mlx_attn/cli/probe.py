"""`mlx-attn probe`: the attention maps of a trained model, and its heads in numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.options import UserPath, takes_plugins
from mlx_attn.cli.output import emit, note
from mlx_attn.cli.sample import prompt_option, run_argument
from mlx_attn.errors import RunError

if TYPE_CHECKING:
    import numpy as np

    from mlx_attn.run_directory import Run
    from mlx_attn.runs import LoadedRun

_EXAMPLES = """\b
Examples:
  mlx-attn probe --figures figures/
  mlx-attn probe runs/tiny-merged --prompt "One rainy day, patient Hugo was"
  mlx-attn probe runs/tiny-merged --track --against runs/tiny-standard --figures figures/
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@run_argument
@prompt_option(help="Text to read; - reads stdin.")
@click.option(
    "--windows",
    default=4,
    show_default=True,
    help="Without a prompt, windows of the validation text to average over.",
)
@click.option("--figures", type=UserPath(), metavar="DIR", help="Write figures as SVG and PNG.")
@click.option("--track", is_flag=True, help="Show what train --track recorded instead.")
@click.option("--against", metavar="RUN", help="With --track, a run to compare with.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    run: str | None,
    prompt: str | None,
    windows: int,
    figures: Path | None,
    track: bool,
    against: str | None,
    as_json: bool,
) -> None:
    """Show each head's attention and matrices in numbers.

    RUN is a directory or a name in runs/; without it, the latest finished one. To see a head at
    work, on any text, use 'mlx-attn open'.
    """
    from mlx_attn.probe import heads, show
    from mlx_attn.runs import find_run, load_run

    if track:
        other = None if against is None else find_run(against)
        _show_track(find_run(run), other, prompt, figures, as_json)
        return
    if against is not None:
        raise click.UsageError("--against compares tracked trainings: add --track")
    loaded = load_run(run)
    probed = heads.probe(loaded.model, _tokens(loaded, prompt, windows))
    files = show.save_figures(probed, figures) if figures else []
    record = {"run": loaded.run.path, **show.record(probed)}
    _emit(record, files, as_json, [show.heads_table(probed), *show.legend(probed)])


def _emit(record: dict[str, Any], files: list[Path], as_json: bool, shown: list[Any]) -> None:
    emit({**record, "files": files}, as_json, lambda: shown)
    for file in () if as_json else files:
        note(f"wrote {file}")


def _tokens(loaded: "LoadedRun", text: str | None, windows: int) -> "np.ndarray":
    from mlx_attn.probe import heads

    if text is None:
        corpus, context = heads.corpus_of(loaded.run), loaded.model.config.context_length
        return heads.validation_windows(corpus, context, windows)
    tokens = heads.prompt_tokens(loaded, text)
    length = len(loaded.tokenizer.encode(text))
    if tokens.shape[1] < length:
        note(f"the model reads the last {tokens.shape[1]} of {length} tokens: more do not fit")
    return tokens


def _show_track(
    run: "Run", other: "Run | None", prompt: str | None, figures: Path | None, as_json: bool
) -> None:
    """Show a tracked training, or two and the drift between them if their weights were kept."""
    from mlx_attn.probe import show, tracking
    from mlx_attn.runs import load_run

    tracked = [tracking.read_track(one) for one in (run, other) if one]
    pair = None
    if other:
        try:
            tokens = _tokens(load_run(str(run.path)), prompt, tracking.TRACKED_TEXTS)
            pair = tracking.pair_drift(run, other, tokens)
        except RunError as error:
            note(str(error))
    files = show.save_tracks(tracked, pair, figures) if figures else []
    record: dict[str, Any] = {"tracks": [show.track_record(track) for track in tracked]}
    drift = show.track_record(pair) if pair else None
    record["drift"] = drift and {"steps": drift["steps"], **drift["drift"]}
    shown = [*tracked, pair] if pair else tracked
    _emit(record, files, as_json, [show.track_table(track) for track in shown])
