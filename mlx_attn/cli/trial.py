"""`mlx-attn trial`: one training of a comparison, from a file."""

from pathlib import Path

import click

from mlx_attn.cli.options import UserPath, takes_plugins
from mlx_attn.cli.output import say

_EXAMPLES = """\b
Examples:
  mlx-attn compare --export-trials trials/
  mlx-attn trial trials/0a1b2c3d4e5f.trial.json
  ls trials/*.trial.json | parallel -j 4 mlx-attn trial {}
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=UserPath())
def command(files: tuple[Path, ...]) -> None:
    """Train trials that `compare --export-trials` wrote, each in one file.

    The record is written beside the file; the same `compare` command takes it up. This machine is
    checked first, in a second: it must compute the right thing, with the versions, text and plugins
    of the machine where the file was written. A trial that has a record is not trained again.
    """
    from mlx_attn.comparison.worker import train_file

    for file in files:
        say(train_file(file))
