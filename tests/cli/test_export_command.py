"""`mlx-attn export` and `mlx-attn import` as a user types them."""

import json
from pathlib import Path

from tests.cli.conftest import done


def test_a_run_goes_out_and_comes_back(train, run_command):
    train("--out=runs/mine", "--block=book", "--position=learned")
    made = run_command("export", "mine", "--to", "gpt2")
    assert made.exit_code == 0, made.output
    lines = made.stdout.splitlines()
    assert lines[0] == "runs/mine-gpt2"
    assert "greedy tokens equal" in lines[-1]
    planned = run_command("import", "runs/mine-gpt2", "--dry-run", "--json")
    assert json.loads(planned.stdout)["import_peak"] > 0
    assert not Path("runs/back").exists()
    back = run_command("import", "runs/mine-gpt2", "--out", "runs/back", "--data", "story.txt")
    assert back.exit_code == 0, back.output
    one, two = (run_command("sample", run, "--temp=0", "-m8").stdout for run in ("mine", "back"))
    assert one == two


def test_an_imported_run_trains_on_and_says_why_it_was_not_compared(
    train, run_command, monkeypatch
):
    train("--out=runs/mine", "--block=book", "--position=learned", "--qkv-bias")
    run_command("export", "mine", "--to=book", "--out=mine.pth")
    monkeypatch.setattr("mlx_attn.interop.parity.interpreter", lambda reader: None)
    flags = ["--n-heads=2", "--tokenizer=runs/mine", "--data=story.txt"]
    made = run_command("import", "mine.pth", *flags, "--out=runs/back")
    assert made.exit_code == 0, made.output
    assert made.stdout.splitlines()[-1].startswith("not compared: torch, which reads it too, is")
    record = json.loads(run_command("import", "mine.pth", *flags, "--json").stdout)
    assert record["parity"] is None
    assert record["unread"].startswith("torch, which")
    more = ["--init-from=back", "--variant=merged", "--steps=2", "--out=runs/more"]
    done(run_command("train", *more))


def test_the_parity_is_in_the_json(train, run_command):
    train("--out=runs/mine", "--variant=merged")
    made = run_command("export", "mine", "--to=mlx-lm", "--json")
    record = json.loads(made.stdout)
    assert record["route"].startswith("code of its own")
    assert record["parity"][-1]["logit_difference"] < 1e-4
