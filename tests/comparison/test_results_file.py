"""Losses that another program wrote are judged as those of a comparison."""

import pytest

from mlx_attn.comparison.decisions import judge
from mlx_attn.comparison.results_file import judge_losses, read_losses, verdict_lines
from mlx_attn.errors import ConfigError, RunError

TABLE = """arm,seed,loss,note
standard,0,1.00,a
standard,1,1.10,b
standard,2,1.05,c
merged,2,1.15,d
merged,0,1.11,e
merged,1,1.20,f
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "results.csv"


def test_runs_are_paired_by_seed_and_judged_against_the_first_arm(file):
    file.write_text(TABLE)
    found = judge_losses(read_losses(file), 0.01, 0.95)
    assert found == judge({"merged": [1.15 - 1.05, 1.11 - 1.0, 1.2 - 1.1]}, 0.01)
    assert found["merged"].word == "worse"


def test_a_line_says_the_word_and_its_interval(file):
    file.write_text(TABLE)
    (line,) = verdict_lines("standard", judge_losses(read_losses(file), 0.01, 0.95), 0.95)
    assert line.startswith("merged, compared with standard: worse, +0.1033 (95 % interval +0.0")
    assert "3 pairs" in line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("arm,loss\na,1\n", "it lacks seed"),
        ("", "it lacks arm, seed, loss"),
        ("arm,seed,loss\na,0,one\n", "line 2: loss 'one' is not a number"),
        ("arm,seed,loss\na,0,1\na,0,2\n", "line 3: a has seed 0 twice"),
    ],
)
def test_a_file_that_is_no_table_of_losses_is_refused(file, text, complaint):
    file.write_text(text)
    with pytest.raises(RunError, match=complaint):
        read_losses(file)


@pytest.mark.parametrize(
    ("losses", "complaint"),
    [
        ({"a": {"0": 1.0}}, "needs two arms: got a"),
        ({"a": {"0": 1.0}, "b": {"1": 1.0}}, "no seed in common"),
        ({"a": {"0": 1.0}, "b": {"0": float("nan")}}, "finite number"),
    ],
)
def test_losses_that_make_no_pairs_are_refused(losses, complaint):
    with pytest.raises(ConfigError, match=complaint):
        judge_losses(losses, 0.01, 0.95)
