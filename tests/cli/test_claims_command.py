"""`mlx-attn claims`, run as a person runs it."""

import json

import pytest

from mlx_attn.comparison.claim import CLAIMS


def test_the_list_has_every_claim(run_command):
    found = json.loads(run_command("claims", "list", "--json").stdout)["claims"]
    assert [row["name"] for row in found] == list(CLAIMS)


def test_without_a_subcommand_it_lists(run_command):
    assert run_command("claims").stdout == run_command("claims", "list").stdout


def test_an_examination_says_whether_it_holds_and_keeps_the_finding(workshop, run_command):
    result = run_command("claims", "run", "merging-costs", "--out", "tested")
    assert "merging-costs: holds" in result.stdout
    kept = json.loads((workshop / "tested" / "findings" / "merging-costs.json").read_text())
    assert kept["answer"] == "holds"


def test_json_is_the_finding(workshop, run_command):
    result = run_command("claims", "run", "merging-costs", "--json")
    assert json.loads(result.stdout)["numbers"]["heads"] == 12


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["merging-cost"], "did you mean 'merging-costs'"),
        ([], "name claims, or --all"),
        (["merging-costs", "--all"], "name claims, or --all"),
    ],
)
def test_a_wrong_wish_is_one_line(workshop, run_command, arguments, complaint):
    result = run_command("claims", "run", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
