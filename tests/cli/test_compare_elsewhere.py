"""`compare --on`, `--export-trials` and `trial`, as their user types them."""

import json

import pytest

from tests.cli.conftest import refused

BRIEF = [
    *("--seeds=1", "--reference=none", "--no-tune", "--no-noise", "--budgets=steps"),
    *("--steps=4", "--delta=0.01", "--out=it"),
]


@pytest.fixture
def compare(run_command, tiny_flags, monkeypatch):
    """Compares two variants, and draws no figures."""
    monkeypatch.setattr("mlx_attn.comparison.report.figure_for_page", lambda draw: "<svg></svg>")
    usual = [flag for flag in tiny_flags if "every" not in flag]
    return lambda *flags: run_command("compare", *usual, *BRIEF, *flags)


def test_trials_are_trained_from_files_and_taken_up(compare, run_command, workshop):
    told = compare("--export-trials=files")
    assert told.exit_code == 0
    files = sorted(str(file) for file in (workshop / "files").glob("*.trial.json"))
    assert f"{len(files)} trainings are in files now: run `mlx-attn trial`" in told.stderr
    lines = run_command("trial", *files).stdout.splitlines()
    assert len([line for line in lines if line.endswith(".record.json")]) == len(files)
    result = compare("--export-trials=files", "--json")
    assert json.loads(result.stdout)["control"] == "standard"
    assert compare("--json").stdout == result.stdout


def test_what_is_no_trial_is_one_line(run_command, workshop):
    (workshop / "a.trial.json").write_text("{")
    assert "a.trial.json: damaged" in refused(run_command("trial", "a.trial.json"), 1)
    assert "a trial is a file" in refused(run_command("trial", "a.txt"), 2)
