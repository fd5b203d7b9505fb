"""`--device` and MLX_ATTN_DEVICE: for every command, before any array is made."""

import os

from mlx_attn.machine import device
from tests.cli.conftest import all_commands


def test_every_command_takes_the_device():
    for command in all_commands():
        variables = [p.envvar for p in command.params if p.name == "device"]
        assert variables == ["MLX_ATTN_DEVICE"], command.help


def test_the_environment_chooses_and_the_flag_beats_it(run_command, chosen, monkeypatch):
    assert run_command("variants", "--device", "gpu").exit_code == 0
    assert (chosen, os.environ[device.DEVICE]) == (["gpu"], "gpu")
    monkeypatch.setenv(device.DEVICE, "gpu")
    run_command("variants")
    run_command("variants", "--device", "cpu")
    assert chosen == ["gpu", "gpu", "cpu"]
