"""`--device` and MLX_ATTN_DEVICE: for every command, before any array is made."""

import os

import click
import pytest

from mlx_attn.cli.main import COMMANDS, group
from mlx_attn.machine import device


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_those_below_it_take_the_device(name):
    command = group.get_command(click.Context(group), name)
    assert command
    children = command.commands.values() if isinstance(command, click.Group) else ()
    for one in (command, *children):
        assert [p.envvar for p in one.params if p.name == "device"] == ["MLX_ATTN_DEVICE"]


def test_the_environment_chooses_and_the_flag_beats_it(run_command, chosen, monkeypatch):
    assert run_command("variants", "--device", "gpu").exit_code == 0
    assert (chosen, os.environ[device.DEVICE]) == (["gpu"], "gpu")
    monkeypatch.setenv(device.DEVICE, "gpu")
    run_command("variants")
    run_command("variants", "--device", "cpu")
    assert chosen == ["gpu", "gpu", "cpu"]
