"""The test for a compiler starts none."""

import os
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import mlx.core as mx
import pytest

from mlx_attn.machine import graphs


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


@pytest.mark.parametrize("denied", ["", "mlx/0.32.4/cpu"])
def test_compiled_code_goes_where_this_user_may_write_or_nowhere(monkeypatch, tmp_path, denied):
    (tmp_path / denied).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(graphs.shutil, "which", lambda name: name)
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path / denied)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(graphs, "user_directory", tmp_path.joinpath)
    assert graphs.has_compiler()
    assert os.environ["TMPDIR"] == str(tmp_path / "cache")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not graphs.has_compiler()


@pytest.mark.parametrize("fault", [OSError, RuntimeError, ValueError])
def test_a_graph_that_mlx_cannot_export_runs_as_it_is(monkeypatch, fault):
    """For lack of room on the disk, of its thread's stream, or of a form of an operation."""
    monkeypatch.setattr(graphs, "compiles_slowly", lambda: True)
    monkeypatch.setattr(graphs, "has_compiler", lambda: False)
    monkeypatch.setattr(mx, "export_function", Mock(side_effect=fault))
    graph = graphs.Graph(lambda x: [2 * x], [mx.array(3)], iter([0]))
    assert graph(mx.array(3))[0].item() == 6
    assert graphs.has_gradients()


def test_without_a_compiler_a_function_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(graphs, "device_name", lambda: "cpu")
    monkeypatch.setattr(graphs.shutil, "which", lambda name: None)
    assert graphs.compiled(len) is len
    assert not graphs.is_compiled(mx.zeros(3))
