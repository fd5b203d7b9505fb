import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.keys import validate

KNOWN = {"steps": int, "lr": float, "bias": bool, "data": str}


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
