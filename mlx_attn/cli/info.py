"""`mlx-attn info`: the machine, the versions, and the fast paths available here."""

import click

from mlx_attn.cli.output import emit


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, for a bug report.")
def command(as_json: bool) -> None:
    """Show the machine, the versions, and the fast paths available here."""
    from mlx_attn.machine.facts import machine_facts

    emit(machine_facts(), as_json)
