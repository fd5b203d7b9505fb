import json
import os
import subprocess
import sys

import pytest

from mlx_attn.attention import attention
from mlx_attn.verify import checks


@pytest.fixture
def two_checks(monkeypatch):
    """The command with two checks that take no time."""
    chosen = [check for check in checks.CHECKS if check.name in ("positions", "activations")]
    monkeypatch.setattr(checks, "CHECKS", chosen)


@pytest.fixture
def another_rope(monkeypatch):
    monkeypatch.setattr(attention, "ROPE_BASE", 500.0)


def test_all_is_right_here_without_a_compiler_and_nothing_is_written(tmp_path):
    without_compiler = {**os.environ, "PATH": str(tmp_path / "nowhere")}
    command = [sys.executable, "-m", "mlx_attn", "verify", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=without_compiler, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    report = json.loads(done.stdout)
    assert report["right"]
    assert report["verdict"].startswith("right: this machine computes the right thing")
    assert {row["check"] for row in report["checks"]} == {check.name for check in checks.CHECKS}
    assert report["devices"][0] == "cpu"
    assert report["machine"]["mlx"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("two_checks")
def test_the_text_has_versions_machine_checks_and_a_verdict(run_command):
    result = run_command("verify")
    lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[0] for line in lines[:4]] == ["versions", "machine", "blas", "verified"]
    assert "cpu  right  positions" in lines[4]
    assert lines[-1].startswith("right: this machine computes the right thing (2 checks")


@pytest.mark.usefixtures("two_checks", "another_rope")
def test_what_is_wrong_is_named_and_ends_with_1(run_command):
    result = run_command("verify")
    assert result.exit_code == 1
    assert "cpu  WRONG  positions" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("WRONG: 1 of 2 checks failed, first positions on the processor")
    assert "RoPE, heads of" in last
    report = json.loads(run_command("verify", "--json").stdout)
    assert [check["right"] for check in report["checks"]] == [False, True]
    assert report["checks"][0]["furthest"][0].keys() == {"case", "difference", "tolerance"}
