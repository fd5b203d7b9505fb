import json
import re

import pytest

from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import create_run
from mlx_attn.text.tokenizers import train_tokenizer


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a run of 40 steps, runs/good, and three that cannot be used."""
    monkeypatch.chdir(tmp_path)
    config = GPTConfig(vocab_size=256, context_length=8, emb_dim=8, n_heads=2, n_layers=1)
    settings = {"variant": "merged", "model": config.as_dict(), "training": {}, "text": {}}
    for name in ("good", "cut", "empty"):
        run = create_run(tmp_path / "runs" / name, settings)
        run.save_model(GPT(config))
        train_tokenizer("byte", "", 0).save(run.path)
        for step, loss in ((20, 2.0), (40, 2.5)):
            run.add_report({"event": "eval", "step": step, "val_loss": loss, "bits_per_byte": 1.5})
    (tmp_path / "runs" / "cut" / "model.safetensors").write_bytes(b"\x08")
    (tmp_path / "runs" / "empty" / "config.json").write_text("{")
    create_run(tmp_path / "runs" / "new", settings)
    return tmp_path


def test_a_run_is_listed_with_its_lowest_loss_and_its_steps(place, run_command):
    lines = run_command("runs").stdout.splitlines()
    good = next(line for line in lines if line.startswith("good"))
    assert re.split(" {2,}", good)[1:4] == ["merged", "1.5000 bits per byte", "40 steps so far"]
    assert good.endswith("ago")


def test_runs_that_cannot_be_used_say_why_beside_the_others(place, run_command):
    result = run_command("runs", "--json")
    problems = {run["name"]: run["problem"] for run in json.loads(result.stdout)["runs"]}
    assert result.exit_code == 0
    assert problems["good"] == ""
    assert problems["cut"] == "runs/cut/model.safetensors: damaged or truncated"
    assert problems["empty"].startswith("runs/empty/config.json: damaged")
    assert problems["new"].startswith("no weights yet")


def test_json_has_numbers_and_not_words(place, run_command):
    found = json.loads(run_command("runs", "--json").stdout)["runs"]
    good = next(run for run in found if run["name"] == "good")
    assert (good["val_loss"], good["steps"], good["path"]) == (2.0, 40, "runs/good")
    assert good["n_bytes"] > 1000


def test_json_says_what_was_trained_on_what_and_how_far(tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    settings = {"model": {}, "training": {"seed": 3}, "text": {}, "corpus": "tales"}
    run = create_run(tmp_path / "runs" / "half", {**settings, "digest": "d1"})
    run.add_report({"event": "start", "step": 0, "steps": 500, "params": 1234})
    run.add_report({"event": "step", "step": 60, "steps": 500, "loss": 2.0})
    run.add_report({"event": "end", "steps": 60, "reason": "interrupted"})
    (half,) = json.loads(run_command("runs", "--json").stdout)["runs"]
    assert (half["text"], half["digest"], half["seed"]) == ("tales", "d1", 3)
    assert (half["parameters"], half["steps"], half["planned"]) == (1234, 60, 500)
    assert (half["ended"], half["interrupted"]) == (True, True)


def test_an_empty_folder_says_what_to_do(tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    result = run_command("runs")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("there is no run in runs: train one with 'mlx-attn train'")


def test_a_folder_that_is_not_there_is_an_error(tmp_path, run_command):
    result = run_command("runs", str(tmp_path / "nowhere"))
    assert (result.exit_code, "there is no such directory" in result.stderr) == (1, True)
