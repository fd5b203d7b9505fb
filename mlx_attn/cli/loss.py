"""`mlx-attn loss`: the loss of a trained model on any text."""

import math
from typing import Any

import click

from mlx_attn.cli.options import takes_plugins
from mlx_attn.cli.output import emit, note
from mlx_attn.cli.sample import run_argument
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import user_path

_EXAMPLES = """\b
Examples:
  mlx-attn loss                                   the latest run, on its validation text
  mlx-attn loss runs/tiny-standard --data notes/
  mlx-attn loss gpt2 --data book.txt --json
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@run_argument
@click.option(
    "--data",
    metavar="TEXT",
    help="A file, a folder, a name of `mlx-attn data`, or - for stdin; by default its own text.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str | None, data: str | None, as_json: bool) -> None:
    """Measure the loss of a trained model on a text.

    In nats per token, as perplexity exp(loss), and in bits per byte, which compares models with
    different tokenizers. The text is read in the windows of a validation: one after the other, as
    long as the model's context, every token but the first predicted once. Of the text that the run
    was trained on, and of generated ones, only the validation part is read.
    """
    emit(_measured(run, data), as_json)


def _measured(run_name: str | None, data: str | None) -> dict[str, Any]:
    from mlx_attn.runs import find_run
    from mlx_attn.text import corpus, sources
    from mlx_attn.text.downloads import data_directory
    from mlx_attn.training.evaluation import Evaluator

    run = find_run(run_name)
    own = run.corpus or str(run.settings["text"].get("data", ""))
    name, way_out = own if data is None else data, "name one with --data"
    if data is None and name in ("", "-", "standard input"):
        raise ConfigError(f"{run.path} has no text that can be read again: {way_out}")
    source = sources.read_source(name, data_directory())
    note(*source.notes)
    # An import names the text of a later training, and has no digest of it.
    is_named = own and user_path(name).absolute() == user_path(own).absolute()
    digest = run.settings.get("digest", source.digest if is_named else "")
    is_own = source.digest == digest
    if data is None and not is_own:
        raise RunError(f"{name}: not the text that {run.path} was trained on: {way_out}")
    is_part = is_own or not source.text
    split = corpus.read_split(source, run.load_tokenizer(), is_part)
    measured = Evaluator(split, run.config.context_length)(run.load_model())
    return {
        "run": str(run.path),
        "text": source.name + (", its validation part" if is_part else ""),
        "tokens": split.n_scored,
        "loss": measured.val_loss,
        "perplexity": math.exp(min(measured.val_loss, 700)),
        "bits_per_byte": measured.bits_per_byte,
        "above_floor": measured.above_floor,
        "accuracy": measured.accuracy,
    }
