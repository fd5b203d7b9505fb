import math

import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.training.config import TrainConfig, expanded


def test_a_training_needs_a_bound_and_any_will_do():
    with pytest.raises(ConfigError, match="give steps, epochs or minutes"):
        TrainConfig()
    assert TrainConfig(steps=1).steps == 1
    assert TrainConfig(epochs=0.5).epochs == 0.5
    assert TrainConfig(minutes=0.1).minutes == 0.1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("accumulate", 0, "accumulate=0 must be at least 1"),
        ("log_every", 0, "log_every=0 must be at least 1"),
        ("lr", 0.0, "lr=0 trains nothing"),
        ("lr", math.nan, "lr=nan must be"),
        ("epochs", math.inf, "epochs=inf must be at most"),
        ("min_lr", 1.0, "min_lr=1.0 must be at most lr=0.001"),
        ("cooldown", 1.5, "cooldown=1.5 must be at most 1"),
        ("beta1", 1.0, "beta1=1 never moves a weight"),
        ("seed", -1, "seed=-1 must be at least 0"),
        ("steps", 10**30, "must be at most"),
        ("schedule", "linear", "one of cosine, wsd, constant, trapezoid"),
        ("windows", "all", "one of random, epochs"),
        ("decay", "none", "one of matrices, all, query-key"),
        ("dtype", "float16", "one of float32, bfloat16"),
        ("compile", "yes", "one of auto, on, off"),
    ],
)
def test_what_cannot_work_is_refused_with_the_number(key, value, message):
    with pytest.raises(ConfigError) as error:
        TrainConfig(**{"steps": 10, key: value})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_are_refused_only_where_they_have_no_use():
    TrainConfig(steps=10, min_lr=1.0, schedule="constant")
    with pytest.raises(ConfigError, match="decay=query-key is for AdamW"):
        TrainConfig(steps=10, optimizer="muon", decay="query-key")


def test_a_recipe_survives_a_file_where_wsd_is_called_trapezoid():
    config = TrainConfig(steps=10, optimizer="muon", lr=0.5, schedule="wsd")
    assert TrainConfig(**config.as_dict()) == config
    assert config == TrainConfig(**{**config.as_dict(), "schedule": "trapezoid"})
    assert config.as_dict()["schedule"] == "trapezoid"
    assert expanded({"schedule": "wsd"}) == {"schedule": "trapezoid"}
