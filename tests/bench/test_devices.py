"""Which device does one kind of work faster is decided by the figures of one measurement."""

import pytest

from mlx_attn.bench.show import faster_device
from mlx_attn.bench.speed import Measurement, MedianIQR


@pytest.mark.parametrize(
    ("cpu", "gpu", "work", "line"),
    [
        (
            300.0,
            100.0,
            "decode",
            "the cpu is 3.0 times as fast as the gpu: mlx-attn sample --device cpu",
        ),
        (
            100.0,
            200.0,
            "train",
            "the gpu is 2.0 times as fast as the cpu: mlx-attn train --device gpu",
        ),
        (100.0, 105.0, "train", "the gpu and the cpu are equally fast"),  # within the quartiles
        (100.0, 200.0, "forward", ""),  # no command does this work
        (100.0, None, "train", ""),
    ],
)
def test_the_faster_device_is_named_with_the_command_that_uses_it(cpu, gpu, work, line):
    one, rows = MedianIQR(1.0, 1.0, 1.0), []
    for device, tok_s in (("cpu", cpu), ("gpu", gpu)):
        if tok_s:
            speed = MedianIQR(tok_s, 0.95 * tok_s, 1.05 * tok_s)
            rows.append(Measurement(work, "standard", speed, one, one, 1, 1, 1, 1, device))
    assert faster_device(rows).rpartition("standard: ")[2] == line
