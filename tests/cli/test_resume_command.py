"""`train --resume` through the command line: the same bits as a training that never stopped."""

import numpy as np

from mlx_attn.arrays import load_arrays
from mlx_attn.runs import open_run


def test_with_dropout_the_weights_and_losses_are_the_same_bits(train, workshop):
    noisy = ["--drop-rate=0.2", "--eval-every=2", "--log-every=1", "--schedule=constant"]
    train(*noisy, "--steps=8", "--name=straight")
    train(*noisy, "--steps=4", "--name=stopped")
    assert train("--resume", "stopped", "--steps=8").exit_code == 0
    straight, stopped = (open_run(workshop / "runs" / name) for name in ("straight", "stopped"))
    for file in ("weights", "checkpoint"):
        expected, found = (load_arrays(getattr(run, file))[0] for run in (straight, stopped))
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
    losses = [
        [report["loss"] for report in run.metrics() if report["event"] == "step"]
        for run in (straight, stopped)
    ]
    assert losses[0] == losses[1]
