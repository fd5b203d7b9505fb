"""`train --resume` through the command line: the same bits as a training that never stopped."""

import json

import numpy as np

from mlx_attn.arrays import load_arrays
from mlx_attn.run_directory import held, open_run
from tests.cli.conftest import refused


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(train, workshop):
    train("--name=straight")
    train("--name=killed")
    run = open_run(workshop / "runs" / "killed")
    run.checkpoint.unlink()
    first = run.metrics()[:2]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in first))
    result = train("--resume", "killed")
    assert "was stopped before its first checkpoint: it begins again" in result.stderr
    straight = load_arrays(workshop / "runs" / "straight" / "model.safetensors")[0]
    killed = load_arrays(run.weights)[0]
    assert all(np.array_equal(straight[name], killed[name]) for name in straight)


def test_a_run_keeps_the_tokenizer_of_another_that_has_moved(train, workshop):
    train("--name=first")
    train("--name=second", "--tokenizer=runs/first")
    (workshop / "runs" / "first").rename(workshop / "runs" / "moved")
    (workshop / "second").mkdir()  # a folder of another kind hides no run
    result = train("--resume", "second", "--steps=8")
    assert result.exit_code == 0, result.stderr


def test_a_run_that_another_process_trains_is_left_alone(train, workshop):
    train("--name=mine")
    path = workshop / "runs" / "mine"
    before = {file: file.read_bytes() for file in path.glob("*.*")}
    with held(open_run(path)):
        result = train("--resume", "mine", "--steps=9", "--quiet")
    assert refused(result, 1).startswith("Error: runs/mine ")
    assert {file: file.read_bytes() for file in path.glob("*.*")} == before
