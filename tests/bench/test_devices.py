"""Which device does one kind of work faster is decided by the figures of one measurement."""

import pytest

from mlx_attn.bench.show import faster_device
from mlx_attn.bench.speed import Measurement, MedianIQR


def measured(device: str, tok_s: float, work: str = "decode", name: str = "standard"):
    speed, one = MedianIQR(tok_s, 0.95 * tok_s, 1.05 * tok_s), MedianIQR(1.0, 1.0, 1.0)
    return Measurement(work, name, speed, one, one, 1, 1, 1, 1, device)


def test_the_faster_device_is_named_with_the_command_that_uses_it():
    assert faster_device([measured("cpu", 300.0), measured("gpu", 100.0)]) == (
        "decoding one text with the cache, standard: the cpu is 3.0 times as fast as the gpu: "
        "mlx-attn sample --device cpu"
    )


def test_training_has_its_own_command():
    rows = [measured("cpu", 100.0, "train"), measured("gpu", 200.0, "train")]
    assert faster_device(rows).endswith("mlx-attn train --device gpu")


def test_a_difference_within_the_quartiles_is_none():
    line = faster_device([measured("cpu", 100.0), measured("gpu", 105.0)])
    assert line.endswith("the gpu and the cpu are equally fast")


@pytest.mark.parametrize(
    "rows",
    [
        [measured("cpu", 100.0), measured("cpu", 200.0, name="merged")],
        [measured("cpu", 100.0, "forward"), measured("gpu", 200.0, "forward")],
    ],
    ids=["one device", "no command does this work"],
)
def test_there_is_nothing_to_choose(rows):
    assert faster_device(rows) == ""
