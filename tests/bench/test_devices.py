"""Which device does one kind of work faster is decided by the figures of one measurement."""

import pytest

from mlx_attn.bench.show import faster_device
from mlx_attn.bench.speed import Measurement, MedianIQR

FAST = "standard: the {} is {} times as fast as the {}: mlx-attn {} --device {}"


@pytest.mark.parametrize(
    ("cpu", "gpu", "work", "line"),
    [
        (300.0, 100.0, "decode", FAST.format("cpu", "3.0", "gpu", "sample", "cpu")),
        (100.0, 200.0, "train", FAST.format("gpu", "2.0", "cpu", "train", "gpu")),
        # Within the quartiles.
        (100.0, 105.0, "train", "standard: the gpu and the cpu are equally fast"),
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
    assert faster_device(rows).rpartition(", ")[2] == line
