"""`mlx-attn train --init-from` and `--track`, from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mlx_attn.cli.main import group

SIZES = ["--n-layers=1", "--n-heads=2", "--head-dim=4", "--emb-dim=8", "--context-length=8"]
RECIPE = ["--data=story.txt", "--tokenizer=char", "--batch-size=2", "--steps=4", "--eval-every=2"]


def train(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["train", *arguments])


def reports(*arguments: str) -> list[dict[str, Any]]:
    result = train(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def trained(made_once) -> Path:
    return made_once(["train", *SIZES, *RECIPE, "--preset=nano", "--name=base", "--quiet"])


@pytest.fixture
def base(trained, in_a_copy) -> Path:
    """A directory with a trained run, runs/base."""
    return in_a_copy(trained)


def test_a_run_goes_on_from_another_in_merged_form_and_tracks_the_drift(base):
    records = reports("--init-from", "base", "--variant", "merged", "--track", "2", "--name", "m")
    tracked = [record for record in records if record["event"] == "track"]
    assert [record["step"] for record in tracked] == [0, 2, 4]
    assert tracked[0]["drift"]["matrices"] == [[0, 0]]
    assert min(tracked[-1]["drift"]["matrices"][0]) > 0
    stored = (base / "runs" / "m" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in stored] == records
    assert len(list((base / "runs" / "m" / "track").iterdir())) == 3


def test_the_settings_are_those_of_the_run_but_for_what_is_given(base):
    train("--init-from", "runs/base", "--steps", "1", "--name", "next", "--quiet")
    old, new = (
        json.loads((base / "runs" / n / "config.json").read_text()) for n in ("base", "next")
    )
    assert new.pop("init_from") == "runs/base"
    assert (old["training"].pop("steps"), new["training"].pop("steps")) == (4, 1)
    assert new == old
