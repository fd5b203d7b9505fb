"""`mlx-attn export` and `mlx-attn import` as a user types them."""

import json

from tests.cli.conftest import done


def test_a_run_goes_out_and_comes_back(train, run_command):
    train("--out=runs/mine", "--block=book", "--position=learned")
    lines = done(run_command("export", "mine", "--to", "gpt2")).splitlines()
    assert lines[0] == "runs/mine-gpt2"
    assert "greedy tokens equal" in lines[-1]
    done(run_command("import", "runs/mine-gpt2", "--out", "runs/back", "--data", "story.txt"))
    one, two = (run_command("sample", run, "--temp=0", "-m8").stdout for run in ("mine", "back"))
    assert one == two


def test_the_parity_is_in_the_json(train, run_command):
    train("--out=runs/mine", "--variant=merged")
    record = json.loads(run_command("export", "mine", "--to=mlx-lm", "--json").stdout)
    assert record["route"].startswith("model.py")
    assert record["install"].startswith("pip install")
    assert record["parity"]["logit_difference"] < 1e-4
