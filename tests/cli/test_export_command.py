"""`mlx-attn export` and `mlx-attn import` as a user types them."""

import json

import pytest


def test_a_run_goes_out_and_comes_back(train, run_command):
    train("--out=runs/mine", "--block=book", "--position=learned")
    made = run_command("export", "mine", "--to", "gpt2")
    assert made.exit_code == 0, made.output
    lines = made.stdout.splitlines()
    assert lines[0] == "runs/mine-gpt2"
    assert "greedy tokens equal" in lines[-1]
    back = run_command("import", "runs/mine-gpt2", "--out", "runs/back", "--data", "story.txt")
    assert back.exit_code == 0, back.output
    one, two = (run_command("sample", run, "--temp=0", "-m8").stdout for run in ("mine", "back"))
    assert one == two


def test_the_parity_is_in_the_json(train, run_command):
    train("--out=runs/mine", "--variant=merged")
    record = json.loads(run_command("export", "mine", "--to=mlx-lm", "--json").stdout)
    assert record["route"].startswith("model.py")
    assert record["install"].startswith("pip install")
    assert record["parity"]["logit_difference"] < 1e-4


@pytest.mark.parametrize("target", ["gguf", "transformer-lens"])
def test_a_target_that_is_not_there_is_one_line(target, train, run_command):
    train("--out=runs/mine")
    told = run_command("export", "mine", "--to", target)
    assert told.exit_code == 2
    assert f"unknown target '{target}'" in told.stderr
    assert len([line for line in told.stderr.splitlines() if target in line]) == 1
