import math

import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.sampling.config import SamplerConfig


def test_defaults_leave_the_distribution_as_it_is_but_for_the_temperature():
    config = SamplerConfig()
    assert (config.temp, config.top_k, config.top_p, config.min_p) == (0.8, 0, 1.0, 0.0)
    assert (config.repetition_penalty, config.seed) == (1.0, None)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temp", -0.1),
        ("temp", math.nan),
        ("temp", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("min_p", 1.01),
        ("repetition_penalty", 0.0),
        ("repetition_window", 0),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_number(setting, value):
    with pytest.raises(ConfigError, match=rf"^{setting}={value} must be "):
        SamplerConfig(**{setting: value})


@pytest.mark.parametrize(("setting", "value"), [("temp", 0.0), ("top_p", 1.0), ("min_p", 1.0)])
def test_the_ends_of_a_range_are_in_it(setting, value):
    assert getattr(SamplerConfig(**{setting: value}), setting) == value
