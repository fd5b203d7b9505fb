"""Whether MLX can compile is found out without starting a compiler."""

import subprocess
import sys
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_attn.bench.speed import operations
from mlx_attn.machine import graphs
from mlx_attn.machine.device import on_linux_cpu
from mlx_attn.machine.layers import LayerNorm, RMSNorm


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch):
    monkeypatch.setattr(graphs, "has_compiler", graphs.has_compiler.__wrapped__)


@pytest.mark.parametrize(("code", "found"), [(0, True), (2, False)])
def test_on_a_mac_g_plus_plus_counts_only_with_the_command_line_tools(monkeypatch, code, found):
    """Without them, starting it opens a window to install them."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(graphs.shutil, "which", lambda name: f"/usr/bin/{name}")
    answers = {("xcode-select", "-p"): SimpleNamespace(returncode=code)}
    monkeypatch.setattr(subprocess, "run", lambda command, **_: answers[tuple(command)])
    assert graphs.has_compiler() is found


def test_without_a_compiler_a_function_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(graphs, "device_name", lambda: "cpu")
    monkeypatch.setattr(graphs.shutil, "which", lambda name: None)
    assert graphs.compiled(len) is len


@pytest.mark.skipif(not on_linux_cpu(), reason="only this back end needs it")
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_with_a_compiler_the_norm_of_a_single_token_takes_fewer_operations(norm, monkeypatch):
    layer, x = norm(16, 1e-5).eval(), mx.ones((1, 1, 16))
    mx.eval(x, layer.parameters())
    counts = []
    for compiles in (True, False):
        monkeypatch.setattr(graphs, "has_compiler", lambda compiles=compiles: compiles)
        counts.append(operations(layer(x)).total())
    assert counts[0] < counts[1]
