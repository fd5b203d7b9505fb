"""Losses that another program wrote are judged like a comparison's."""

import pytest

from mlx_attn.comparison.judging import Contrast, judge
from mlx_attn.comparison.losses import judge_losses, read_losses
from mlx_attn.comparison.show import verdict_lines
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
def judged(tmp_path):
    """Judges the runs of a table."""

    def of(text):
        (tmp_path / "results.csv").write_text(text)
        return judge_losses(read_losses(tmp_path / "results.csv"), 0.01, 0.95)

    return of


def test_runs_are_paired_by_seed_and_judged_against_the_first_arm_in_a_line(judged):
    with pytest.warns(UserWarning, match="only standard or merged has, 1 in all: if those runs"):
        found = judged(f"{TABLE}standard,3,1.2,a run of merged that failed\n")
    differences = 1.15 - 1.05, 1.11 - 1.0, 1.2 - 1.1
    assert found == judge({"merged": Contrast(differences=differences)}, 0.01)
    line, doubt = verdict_lines("standard", found, 0.95)
    assert line.startswith("merged, compared with standard: worse, +0.1033 (95 % interval +0.08")
    assert "3 pairs" in line
    assert doubt.startswith("Nothing but these pairs shows how far they spread")


@pytest.mark.parametrize(
    ("text", "error", "complaint"),
    [
        ("", RunError, "once; look at arm, seed, loss"),
        ("arm,seed,loss,loss\na,0,1,2\n", RunError, "once; look at loss$"),
        ("arm,seed,loss\na,0,1\n,0,2\n", RunError, "line 3: give it arm, seed and 3 ce"),
        ("arm,seed,loss\na,,1\nb,,2\n", RunError, "line 2: give it arm, seed"),
        ("arm,seed,loss\na,0,1,5\nb,0,1,6\n", RunError, "line 2: give it arm, seed"),
        ("arm,seed,loss\na,0,1\nb,0,1e300\n", RunError, "line 3: the loss 1e300 of b is not fin"),
        ("arm,seed,loss\na,0,1\na,0,2\n", RunError, "line 3: a has seed 0 twice"),
        ("arm,seed,loss\na,0,1\n", ConfigError, "needs two arms: got a"),
        ("arm,seed,loss\na,0,1\nb,1,1\n", ConfigError, "no seed in common"),
        ("arm,seed,loss\na,0,1\nb,0,nan\n", RunError, "line 3: .* finite.* diverges is worse"),
        ("arm,seed,loss\n\n\na,0,one\n", RunError, "line 4: loss 'one' is not a number"),
        (f"arm,{'1' * 200_000}\n", RunError, "line 1: field larger than"),
        (TABLE.replace("c\n", '"5 inch\n'), RunError, "a quotation mark that is not closed"),
    ],
)
def test_a_file_that_is_no_table_of_pairs_is_refused(judged, text, error, complaint):
    with pytest.raises(error, match=complaint):
        judged(text)


@pytest.mark.parametrize(
    ("losses", "end"),
    [
        (
            (1.001, 1.002, 1.003),
            "the same within 0.01, +0.002 (95 % interval -0.0004841 to +0.004484, 3 pairs)",
        ),
        ((1.01, 1.0, 1.02), "3 pairs); 10 seeds would decide"),
        ((0.8, 1.2, 1.0), "3 pairs); fewer than 1000 seeds would not decide"),
        ((1.0, 1.0), "the same within 0.01, +0 (95 % interval +0 to +0, 2 pairs)"),
        ((1.1,), "too few for an interval, 1 pair)"),
        *(((1.1,) * n, f"not known, +0.1 (too alike for an interval, {n} pairs)") for n in (2, 3)),
    ],
)
def test_the_same_has_its_margin_and_not_known_the_seeds_that_would_decide(judged, losses, end):
    rows = [f"a,{i},{i + 1}\nb,{i},{i + loss}" for i, loss in enumerate(losses)]
    found = judged("\n".join(["arm,seed,loss", *rows]))
    assert next(verdict_lines("a", found, 0.95)).endswith(end)


@pytest.mark.parametrize("rows", ["a,{0},1.{0}\nb,{0},1", "a,{0},1\nb,{0},1.{0}"])
def test_runs_that_no_seed_changes_are_one_run(judged, rows):
    table = "\n".join(["arm,seed,loss", *map(rows.format, (1, 2, 3))])
    with pytest.warns(UserWarning, match="all 3 runs of b or of a have the same loss"):
        found = judged(table)
    assert next(verdict_lines("a", found, 0.95)).endswith("(too few for an interval, 1 pair)")
