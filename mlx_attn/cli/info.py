"""`mlx-attn info`: the machine, the versions, and what is fast here."""

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, for a bug report.")
def command(as_json: bool) -> None:
    """Show the machine, the versions and what is fast here."""
    from rich.table import Table

    from mlx_attn.show.machine import machine_facts
    from mlx_attn.show.terminal import stdout_console

    facts = machine_facts()
    if as_json:
        click.echo(json.dumps(facts))
        return
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), "-" if value is None else str(value))
    stdout_console().print(table)
