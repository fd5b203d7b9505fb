"""`mlx-attn compare`, run as a person runs it, on a text that trains in a moment."""

import json
import os
import subprocess
import sys

import pytest

from mlx_attn.comparison.show import LOOKS
from tests.cli.conftest import TINY_FLAGS, done, refused

SMALL = [
    *(flag for flag in TINY_FLAGS if not flag.startswith(("--eval", "--log", "--steps"))),
    *("--steps=8", "--no-tune", "--seeds=2"),
]


@pytest.fixture
def compare(workshop, run_command, in_this_process, no_figures):
    """Compares two variants, and draws no figures; later flags win."""
    return lambda *flags: run_command("compare", "--variants=standard,no-query", *SMALL, *flags)


def test_json_is_the_whole_result_and_the_same_command_trains_nothing_twice(compare, workshop):
    first = json.loads(compare("--json").stdout)
    assert first["control"] == "standard"
    assert first["verdicts"]["no-query"]["word"] in LOOKS
    directory = workshop / "runs" / "compare-standard-no-query"
    assert {"comparison.json", "report.html"} <= {f.name for f in directory.iterdir()}
    times = {file: file.stat().st_mtime_ns for file in (directory / "trainings").iterdir()}
    second = compare()
    assert second.exit_code == 0, second.output
    assert "no-query" in second.stdout
    assert {file: file.stat().st_mtime_ns for file in times} == times
    again = json.loads((directory / "comparison.json").read_text())
    assert again["verdicts"] == first["verdicts"]


def test_the_plan_counts_the_reference_arm_and_trains_nothing(compare, workshop):
    plan = compare("--dry-run", "--tune").stdout
    assert "standard, no-query" in plan
    assert "scores-off" in plan
    # Two arms and the reference, three factors, one seed of two.
    assert "9 trainings, 1 seed a factor" in plan
    # The reference, and the control with fewer steps, which measures the margin.
    assert "8 trainings, 2 seeds an arm" in plan
    assert not (workshop / "runs").exists()


def test_the_first_arm_of_the_command_line_is_the_control(compare, run_command):
    mixed = ["--arm=few: n_heads=1", "--variants=merged", *SMALL, "--dry-run", "--json"]
    assert json.loads(run_command("compare", *mixed).stdout)["arms"] == "few, merged"
    mixed = json.loads(compare("--arm=few: n_heads=1", "--dry-run", "--json").stdout)
    assert (mixed["arms"], mixed["control"]) == ("standard, no-query, few", "standard")


@pytest.mark.parametrize(
    ("losses", "word", "status"),
    [((0.9, 0.91), "better", 0), ((1.2, 1.21), "worse", 10), ((1.0, 1.5), "not known", 12)],
)
def test_the_exit_status_is_the_word_if_asked_for(tmp_path, run_command, losses, word, status):
    file = tmp_path / "results.csv"
    rows = [f"a,{seed},1\na,{seed + 2},1.001" for seed in range(2)]
    rows += [f"b,{seed},{losses[seed % 2]}" for seed in range(4)]
    file.write_text("\n".join(["arm,seed,loss", *rows]))
    assert f"b, compared with a: {word}" in done(run_command("compare", "--from", str(file)))
    result = run_command("compare", "--from", str(file), "--json", "--exit-code")
    assert result.exit_code == status
    answer = json.loads(result.stdout)
    assert (answer["verdict"], answer["seeds"]) == (word, 4)
    reader, writer = os.pipe()
    os.close(reader)  # nobody reads, as with `| true`
    command = [sys.executable, "-m", "mlx_attn", "compare", "--from", str(file), "--exit-code"]
    assert subprocess.run(command, stdout=writer, timeout=60).returncode == status


def test_a_comparison_whose_time_is_over_is_not_known_and_goes_on(workshop, run_command):
    flags = ["--variants=standard,no-query", *SMALL, "--jobs=1", "--json", "--exit-code"]
    result = run_command("compare", *flags, "--minutes=1e-9")
    assert result.exit_code == 12
    answer = json.loads(result.stdout)
    assert (answer["verdict"], answer["difference"], answer["seeds"]) == ("not known", None, 0)
    assert (answer["is_open"], "the same command continues" in answer["reason"]) == (True, True)


def test_settings_come_from_a_file_then_environment_then_flags(compare, workshop, monkeypatch):
    (workshop / "it.toml").write_text(
        'steps = 5\nreference = "none"\n'
        "[comparison]\nseeds = 4\ntuning_seeds = 1\nscales = [0.5, 1]\n"
    )
    monkeypatch.setenv("MLX_ATTN_SCALES", "1,2,4")
    plan = compare("--config=it.toml", "--tune", "--dry-run").stdout
    assert "reference       none" in plan
    assert "6 trainings, 1 seed a factor" in plan
    assert "2 seeds an arm" in plan
    (workshop / "it.toml").write_text("[comparison]\ntuning_seeds = 4.5")
    assert "it.toml: tuning_seeds=4.5 must be a w" in refused(compare("--config=it.toml"), 2)
