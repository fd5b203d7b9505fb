"""`python -m studies`: write the pages of the answers from the records, or verify them."""

from pathlib import Path

import click

from mlx_attn.errors import ConfigError, RunError, plural
from studies.answers_page import AnswersPage
from studies.page import verify as disagreements
from studies.page import write_page
from studies.study import the_study

ANSWERS = Path(__file__).parents[1] / "docs" / "answers"

_COMPLAINTS = 10  # shown by `verify` at most


@click.group()
def command() -> None:
    """Write docs/answers.md and its record from the records of trainings, or verify them."""


@command.command()
def write() -> None:
    """Write the pages and their pictures from the registrations and records."""
    click.echo(write_page(the_study(), ANSWERS, AnswersPage))


@command.command()
def verify() -> None:
    """Compute every number and word of the pages from the records again."""
    found = [*disagreements(the_study(), ANSWERS, AnswersPage)]
    for complaint in found[:_COMPLAINTS]:
        click.echo(complaint, err=True)
    if found:
        do = "does" if len(found) == 1 else "do"
        raise click.ClickException(f"{plural(len(found), 'thing')} of {ANSWERS} {do} not agree")
    click.echo(f"{ANSWERS}: registrations, records and pages agree")


if __name__ == "__main__":
    try:
        command(prog_name="python -m studies")
    except (ConfigError, RunError) as error:
        raise SystemExit(f"error: {error}") from error
