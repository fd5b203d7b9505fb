"""`mlx-attn info`: the machine, the versions and what is fast here."""

import json
import platform
import sys
from importlib.metadata import version
from typing import Any

import click

from mlx_attn import __version__, blas


def versions() -> dict[str, str]:
    """The versions and the platform that a run was made with, for config.json and bug reports."""
    import mlx.core as mx

    return {
        "mlx_attn": __version__,
        "mlx": version("mlx"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": mx.default_device().type.name,
    }


def machine_facts() -> dict[str, Any]:
    """Versions, chip, memory and BLAS."""
    import mlx.core as mx

    from mlx_attn.training.trainer import machine_memory

    device: Any = mx.device_info()
    found = blas.preload()
    return versions() | {
        "metal": mx.metal.is_available(),
        "chip": device.get("device_name", platform.machine()),
        "memory_bytes": machine_memory(),
        "blas": found.library or ("Accelerate" if sys.platform == "darwin" else "MLX's own"),
        "blas_note": found.note,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, for a bug report.")
def command(as_json: bool) -> None:
    """Show the machine, the versions and what is fast here."""
    from mlx_attn.text.show import facts_rows
    from mlx_attn.ui.terminal import print_rows, stdout_console

    facts = machine_facts()
    if as_json:
        click.echo(json.dumps(facts))
    else:
        print_rows(facts_rows(facts), stdout_console())
