"""`mlx-attn export`: a run for mlx-lm, transformers, llama.cpp, the book or TransformerLens."""

from pathlib import Path

import click

from mlx_attn.cli.options import UserPath, takes_plugins
from mlx_attn.cli.output import emit, note
from mlx_attn.cli.sample import run_argument
from mlx_attn.errors import find_row

_EXAMPLES = """\b
Targets:
  mlx-lm            a folder for mlx-lm and transformers, of any model
  gpt2              a folder of GPT-2, for programs that run no code
  gguf              one file for llama.cpp, LM Studio, Ollama
  book              model.pth of the book's GPTModel
  transformer-lens  weights for a HookedTransformer

\b
Examples:
  mlx-attn export tiny-standard --to mlx-lm
  mlx-attn export runs/macbook-merged --to gguf --out merged.gguf
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@run_argument
@click.option("--to", metavar="TARGET", required=True, help="The program to write for.")
@click.option("--out", "-o", type=UserPath(), help="The folder or file to write.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier export left there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str | None, to: str, out: Path | None, overwrite: bool, as_json: bool) -> None:
    """Write a run for another program, load it back, and print how exactly it agrees.

    RUN is a directory or a name in runs/; without it, the latest finished one. A model that the
    target's architecture holds is written as that; a form of attention that converts exactly is
    converted; any other is written with its code (mlx-lm) or refused with the reason.
    """
    from mlx_attn.interop.targets import TARGETS, export_run
    from mlx_attn.sampling.generate import load_run

    target, loaded = find_row(TARGETS, to, "target"), load_run(run)
    default = loaded.run.path.with_name(f"{loaded.name}-{target.name}{target.suffix}")
    export = export_run(loaded, target, out or default, overwrite)
    for line in () if as_json else export.unread:
        note(line)
    lines = [export.path, export.route, *(parity.line for parity in export.parities)]
    emit(export.record(), as_json, lambda: lines)
