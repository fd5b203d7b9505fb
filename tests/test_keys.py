import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.keys import keys_of, validate
from mlx_attn.model.config import GPTConfig
from mlx_attn.training.config import TrainConfig

KNOWN = {"steps": int, "lr": float, "bias": bool, "data": str}


def test_the_keys_of_configurations_have_the_types_of_their_defaults():
    keys = keys_of(GPTConfig, TrainConfig)
    assert (keys["n_heads"], keys["lr"], keys["bias"], keys["score"]) == (int, float, bool, str)


def test_settings_of_the_right_types_pass_and_a_whole_number_becomes_a_float():
    settings = {"steps": 3, "lr": 0.5, "bias": True, "data": "x"}
    assert validate(settings, KNOWN) == settings
    assert type(validate({"lr": 2}, KNOWN)["lr"]) is float


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("steps", 3.0, "a whole number"),
        ("steps", True, "a whole number"),
        ("steps", None, "a whole number"),
        ("lr", float("inf"), "a finite number"),
        ("lr", 10**400, "a finite number"),
        ("bias", 0, "true or false"),
        ("data", 7, "a text"),
    ],
)
def test_another_type_is_refused_with_the_value(key, value, meant):
    with pytest.raises(ConfigError, match=f"^{key}=.* must be {meant}$"):
        validate({key: value}, KNOWN)
