"""`mlx-attn report` from the command line."""

import json

import pytest

from mlx_attn.comparison.result import ArmResult, BudgetResult, Comparison, Point, TrialResult
from tests.cli.conftest import refused

TRAINED = TrialResult(
    **{"seed": 1, "lr_scale": 1.0, "steps": 4, "tokens": 512, "ranks": (), "tok_s": 256.0},
    **{"seconds": 1.5, "peak_memory": 1_000_000, "sample": "Once", "val_loss": 2.5},
    curve=(Point(step=4, tokens=512, seconds=1.5, val_loss=2.5),),
)
CONTROL = ArmResult(
    **{"arm": "standard", "settings": {}, "lr_scale": 1.0, "params": 1000},
    **{"multiply_adds": 2000, "cache_bytes_per_token": 64, "trainings": (TRAINED,)},
)
ALONE = Comparison(
    name="alone",
    question="Is it needed?",
    command="mlx-attn compare standard",
    control="standard",
    settings={"steps": 4},
    delta=0.02,
    confidence=0.95,
    text={"name": "tales", "floor": None},
    versions={"mlx": "0.32.4"},
    noise=None,
    tunings=(),
    budgets=(BudgetResult(budget="steps", arms=(CONTROL,), refused={}, verdicts={}),),
    seconds=1.5,
)


@pytest.fixture
def place(workshop):
    """A comparison in the directory alone/."""
    (workshop / "alone").mkdir()
    (workshop / "alone" / "comparison.json").write_text(json.dumps(ALONE.as_dict()))
    return workshop


def test_a_page_and_markdown_are_written_beside_the_comparison(place, run_command):
    result = run_command("report", "alone")
    assert result.exit_code == 0
    assert result.stderr == "wrote alone/report.html\nwrote alone/report.md\n"
    assert "<h1>Is it needed?</h1>" in (place / "alone" / "report.html").read_text()
    (place / "runs").mkdir()
    (place / "alone").rename(place / "runs" / "alone")
    assert run_command("report", "alone").stderr.startswith("wrote runs/alone/report.html\n")


def test_markdown_or_json_goes_to_stdout_and_nothing_is_written(place, run_command):
    result = run_command("report", "alone", "--markdown")
    assert result.stdout.startswith("# alone\n\nIs it needed?\n")
    found = json.loads(run_command("report", "alone", "--json").stdout)
    assert found == json.loads(json.dumps(ALONE.as_dict()))
    assert [path.name for path in (place / "alone").iterdir()] == ["comparison.json"]
    assert run_command("report", "alone", "--json", "--markdown").exit_code == 2


def test_what_is_no_comparison_is_one_line(place, run_command):
    file = place / "alone" / "comparison.json"
    file.write_text('{"format": 9}')
    assert "has format 9, this version reads 1" in refused(run_command("report", "alone"), 1)
    file.unlink()
    line = refused(run_command("report", "alone"), 1)
    assert "alone holds no comparison: there is no comparison.json in it" in line
