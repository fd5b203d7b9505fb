"""`train --resume` through the command line: the same bits as a training that never stopped."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlx_attn.arrays import load_arrays
from mlx_attn.run_directory import held, open_run
from tests.cli.conftest import refused


def assert_same_arrays(expected: Path, actual: Path) -> None:
    arrays, others = load_arrays(expected)[0], load_arrays(actual)[0]
    assert all(np.array_equal(arrays[name], others[name]) for name in arrays)


def test_with_dropout_the_weights_and_losses_are_the_same_bits(train, workshop):
    noisy = ["--drop-rate=0.2", "--eval-every=2", "--log-every=1", "--schedule=constant"]
    train(*noisy, "--steps=8", "--name=straight")
    train(*noisy, "--steps=4", "--name=stopped")
    assert train("--resume", "stopped", "--steps=8").exit_code == 0
    straight, stopped = (open_run(workshop / "runs" / name) for name in ("straight", "stopped"))
    for file in ("model.safetensors", "checkpoint/last.safetensors"):
        assert_same_arrays(*(run.path / file for run in (straight, stopped)))
    losses = [
        [report["loss"] for report in run.metrics() if report["event"] == "step"]
        for run in (straight, stopped)
    ]
    assert losses[0] == losses[1]


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(train, workshop):
    train("--name=straight")
    train("--name=killed")
    run = open_run(workshop / "runs" / "killed")
    run.checkpoint.unlink()
    first = run.metrics()[:2]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in first))
    result = train("--resume", "killed")
    assert "was stopped before its first checkpoint: it begins again" in result.stderr
    runs = workshop / "runs"
    assert_same_arrays(*(runs / name / "model.safetensors" for name in ("straight", "killed")))


@pytest.mark.parametrize(
    "flags",
    [["--resume", "mine", "--steps=9"], ["--name=mine", "--overwrite"]],
)
def test_a_run_that_another_process_trains_is_left_alone(train, workshop, flags):
    train("--name=mine")
    path = workshop / "runs" / "mine"
    before = {file: file.read_bytes() for file in path.glob("*.*")}
    with held(open_run(path)):
        result = train(*flags, "--quiet")
    assert refused(result, 1).startswith("Error: runs/mine ")
    assert {file: file.read_bytes() for file in path.glob("*.*")} == before
