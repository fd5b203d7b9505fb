"""`mlx-attn export`: a run for mlx-lm, transformers or the book."""

from dataclasses import asdict
from pathlib import Path

import click

from mlx_attn.cli.options import UserPath, takes_plugins
from mlx_attn.cli.output import emit
from mlx_attn.cli.sample import run_argument
from mlx_attn.errors import find_row

_EXAMPLES = """\b
Targets, each a folder:
  mlx-lm   any model: GPT-2 if that is exact, else a model file that needs mlx_attn beside mlx-lm
  gpt2     GPT-2, for transformers, with a tied head also mlx-lm and others that run no code
  book     the state dict and settings of the book's GPTModel

\b
Examples:
  mlx-attn export tiny-standard --to mlx-lm
  mlx-attn export runs/macbook-no-out-proj --to gpt2 --out folder
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@run_argument
@click.option("--to", metavar="TARGET", required=True, help="The program to write for.")
@click.option("--out", "-o", type=UserPath(), help="The folder to write.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier export left there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str | None, to: str, out: Path | None, overwrite: bool, as_json: bool) -> None:
    """Write a run for another program, read it back, and print how exactly it agrees.

    RUN is a directory or a name in runs/; without it, the latest finished one. A form of attention
    that converts exactly is written in the target's own form; any other is refused with the reason,
    or for mlx-lm written with a model file. --overwrite leaves files that export did not write.
    """
    from mlx_attn.interop.targets import TARGETS, export_run
    from mlx_attn.runs import load_run

    target, loaded = find_row(TARGETS, to, "target"), load_run(run)
    name = next(name for name in TARGETS if TARGETS[name] is target)
    default = loaded.run.path.with_name(f"{loaded.name}-{name}")
    export = export_run(loaded, target, out or default, overwrite)
    install = [f"beside mlx-lm, once: {export.install}"] if export.install else []
    lines = [export.path, export.route, *install, export.parity.line]
    emit(asdict(export), as_json, lambda: lines)
