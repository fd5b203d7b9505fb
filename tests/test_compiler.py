"""The test for a compiler starts none."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


def test_a_temporary_folder_that_is_not_there_is_replaced(monkeypatch):
    monkeypatch.setattr(graphs.shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: SimpleNamespace(returncode=0))
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    assert graphs.has_compiler()
    assert Path(os.environ["TMPDIR"]).is_dir()


def test_without_a_compiler_a_function_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(graphs, "device_name", lambda: "cpu")
    monkeypatch.setattr(graphs.shutil, "which", lambda name: None)
    assert graphs.compiled(len) is len
