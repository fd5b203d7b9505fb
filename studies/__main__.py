"""`python -m studies`: write docs/answers.md from the records, verify it, show its numbers."""

from importlib import import_module
from inspect import getsource
from pathlib import Path

import click

from mlx_attn.errors import ConfigError, RunError, plural
from mlx_attn.files import write_text
from studies import answers, trainings
from studies.lengths import table
from studies.plan import registered
from studies.text import write_source

_COMPLAINTS = 10  # shown by `verify` at most


@click.group()
def command() -> None:
    """Write docs/answers.md from the records of trainings, verify it, or show its numbers."""


@command.command()
def write() -> None:
    """Write the page, its figure, and the numbers that `mlx-attn answers` prints."""
    for path, content in answers.contents().items():
        write_text(path, content)
        click.echo(path)


@command.command()
def verify() -> None:
    """Compute the page, its figure and its numbers from the records again."""
    if found := [*answers.verify()]:
        shown = "\n".join(found[:_COMPLAINTS])
        raise RunError(f"{plural(len(found), 'disagreement')} with the records\n{shown}")
    click.echo("records, page, figure and answers.json agree")


@command.command()
def seal() -> None:
    """Note the digests of the records, after trainings were added to them."""
    click.echo(trainings.seal())


@command.command()
@click.argument("question")
def show(question: str) -> None:
    """Show every number of a QUESTION of the page, with the command that trains it again."""
    for line in answers.show(question):
        click.echo(line)


@command.command()
@click.argument("folder", type=click.Path(path_type=Path))
def text(folder: Path) -> None:
    """Download ten packages into a FOLDER, and write the text of the study of two sizes there."""
    click.echo(write_source(registered().text, folder))


@command.command()
def python_modules() -> None:
    """Print the text `python`: modules of this Python's library (that of the records is 3.11)."""
    modules = map(import_module, table().texts["python"].modules)
    click.echo("\n".join(map(getsource, modules)), nl=False)


if __name__ == "__main__":
    try:
        command(prog_name="python -m studies")
    except (ConfigError, RunError) as error:
        raise SystemExit(f"error: {error}") from error
