"""Each failure of MLX and Metal has advice of its own, in one line."""

import pytest
from click.testing import CliRunner

from mlx_attn.cli import runs
from mlx_attn.cli.main import group
from mlx_attn.machine.advice import advice_about

_BUFFER = "[METAL] Command buffer execution failed: "

MESSAGES = {
    "[metal::load_device] No Metal device available.": "use --device cpu",
    f"{_BUFFER}Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)": (
        "out of memory"
    ),
    "Could not load C++ shared library folder/a.so: file too short": "delete it if damaged",
    "[Compile::eval_cpu] Failed to compile function": "set MLX_DISABLE_COMPILE=1",
    "Failed to compile function f: g++ a.cpp: No space left on device": "let TMPDIR name a folder",
}
"""The texts of MLX 0.32.4 and of Metal, each with words of its advice."""


@pytest.mark.parametrize(("message", "advice"), MESSAGES.items())
def test_a_known_failure_comes_with_its_own_advice(message, advice):
    line = advice_about(RuntimeError(message))
    assert advice in line
    assert line.endswith(f"({message})")
    assert advice_about(RuntimeError("a bug")) == ""


def test_every_command_prints_the_advice_in_one_line(monkeypatch):
    def failing(*_):
        raise RuntimeError(next(iter(MESSAGES)))

    monkeypatch.setattr(runs.command, "invoke", failing)
    result = CliRunner().invoke(group, ["runs"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: this process cannot use the Mac's GPU")
    assert result.stderr.count("\n") == 1
