"""`mlx-attn info`: the machine, the versions and what is fast here."""

import json

import click

from mlx_attn.cli.main import say


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, for a bug report.")
def command(as_json: bool) -> None:
    """Show the machine, the versions and what is fast here."""
    from mlx_attn.machine import machine_facts
    from mlx_attn.text.show import facts_rows
    from mlx_attn.ui.terminal import print_rows, stdout_console

    facts = machine_facts()
    if as_json:
        say(json.dumps(facts))
    else:
        print_rows(facts_rows(facts), stdout_console())
