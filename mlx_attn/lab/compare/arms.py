"""The contestants of a comparison: a name, and the settings that set it apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mlx_attn.attention.variants import find_variant
from mlx_attn.errors import ConfigError, nearest
from mlx_attn.model.config import GPTConfig
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.settings import expanded

_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Arm:
    """One contestant.

    Attributes:
        name: What a person calls it; alone, a variant's name.
        settings: The settings that set it apart, flat, `variant` among them.
    """

    name: str
    settings: Mapping[str, Any]


def arm_from(text: str) -> Arm:
    """The contestant that a text describes: `merged`, or `one head: merged, n_heads=1`.

    Before the colon is its name, after it a variant and settings; without a colon the text is both.
    Where no variant is named, it is the standard one.

    Raises:
        ConfigError: A variant or a setting is unknown, or its value of another type.
    """
    name, _, description = text.partition(":")
    parts = [part.strip() for part in (description or text).split(",") if part.strip()]
    variants = [part for part in parts if "=" not in part]
    if len(variants) > 1 or not parts:
        raise ConfigError(
            f"'{text}' must describe one arm: a variant and settings, as in "
            "'one head: merged, n_heads=1'"
        )
    settings = dict(_setting(part) for part in parts if "=" in part)
    settings["variant"] = find_variant(variants[0]).name if variants else "standard"
    expanded(settings)
    return Arm(" ".join(name.split()) if description else _plain_name(settings, parts), settings)


def arms_from(texts: Sequence[str]) -> tuple[Arm, ...]:
    """The contestants, the first of which is the control.

    Raises:
        ConfigError: There are fewer than two, or two of the same name or with the same settings.
    """
    arms = tuple(arm_from(text) for text in texts)
    names = [arm.name for arm in arms]
    if len(arms) < 2:
        raise ConfigError("a comparison needs at least two arms: name another variant")
    for number, arm in enumerate(arms):
        if arm.name in names[:number]:
            raise ConfigError(
                f"two arms are called '{arm.name}': give one another name, 'NAME: ...'"
            )
        same = [other.name for other in arms[:number] if other.settings == arm.settings]
        if same:
            raise ConfigError(f"'{arm.name}' and '{same[0]}' are the same: change one of them")
    return arms


def _plain_name(settings: Mapping[str, Any], parts: Sequence[str]) -> str:
    return ", ".join([settings["variant"], *(part for part in parts if "=" in part)])


def _setting(part: str) -> tuple[str, Any]:
    """A key and its value, typed as the configuration class that has the key wants it."""
    key, value = (side.strip() for side in part.split("=", 1))
    known = {f.name: type(f.default) for c in (GPTConfig, TrainConfig) for f in fields(c)}
    key = key.replace("-", "_")
    if key not in known:
        raise ConfigError(f"unknown setting '{key}'{nearest(key, known)}")
    return key, _value(key, value, known[key])


def _value(key: str, text: str, kind: type) -> Any:
    try:
        return _TRUTHS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        wanted = "true or false" if kind is bool else f"a number ({kind.__name__})"
        raise ConfigError(f"{key}={text} must be {wanted}") from error
