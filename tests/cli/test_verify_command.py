import json

from mlx_attn.attention.forms import positions
from mlx_attn.verify import checks
from tests.cli.conftest import in_a_process


def test_all_is_right_here_without_a_compiler_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without_compiler = {"PATH": str(tmp_path / "nowhere"), "MLX_ATTN_DEVICE": "cpu"}
    done = in_a_process("-m", "mlx_attn", "verify", "--json", **without_compiler)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    report = json.loads(done.stdout)
    assert report["right"]
    assert report["verdict"].startswith("right: this machine computes the right thing (5 checks")
    assert report["machine"]["mlx"]
    rows = [row for check in report["checks"] for row in check["comparisons"]]
    assert all(row["difference"] <= row["bound"] for row in rows)
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_named_and_ends_with_1(run_command, monkeypatch, on_processor):
    monkeypatch.setattr(checks, "CHECKS", (checks.products, checks.golden_losses))
    monkeypatch.setenv("MLX_ATTN_DEVICE", "cpu")
    monkeypatch.setattr(positions, "ROPE_BASE", 500.0)
    result = run_command("verify")
    lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (1, "")
    assert [line.split()[0] for line in lines[:3]] == ["mlx", "mlx", "numpy"]
    assert "cpu  right  products" in result.stdout
    assert "cpu  WRONG  golden losses" in result.stdout
    assert lines[-1].startswith("WRONG: 1 of 2 checks failed, golden losses first: RoPE")
