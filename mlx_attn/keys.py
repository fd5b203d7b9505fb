"""Settings from files, flags and the environment, checked against configuration classes."""

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import field, fields
from pathlib import Path
from sys import float_info
from typing import Any

from mlx_attn.errors import ConfigError, did_you_mean

_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    tuple: "a list of finite numbers",
}


def setting(
    default: Any,
    text: str,
    *,
    words: Collection[str] = (),
    low: float = 0,
    high: float | None = None,
) -> Any:
    """Return a field of a configuration; `check_settings` holds values to it.

    Args:
        default: Its value unless another is given.
        text: Its meaning, which the command line shows.
        words: The values that it may have, if they are few.
        low: Of a number, the least.
        high: Of a number, the greatest; None is as large as a file can hold.
    """
    if high is None:
        high = float_info.max if isinstance(default, float) else 2**62
    facts = {"help": text, "words": words, "range": (low, high)}
    return field(default=default, metadata=facts)


def check_settings(config: Any) -> None:
    """Raise a `ConfigError` if a setting has none of its words, or a number outside its range."""
    for key in fields(config):
        if key.metadata:
            value, words = getattr(config, key.name), key.metadata["words"]
            if words:
                check_word(key.name, value, words)
            elif type(value) in (int, float):
                check_number(key.name, value, *key.metadata["range"])


def check_word(name: str, word: str, words: Collection[str]) -> None:
    """Raise a `ConfigError` if a setting is none of its few words."""
    if word not in words:
        raise ConfigError(f"{name}='{word}' must be one of {', '.join(words)}")


def check_number(name: str, number: float, low: float, high: float = math.inf) -> None:
    """Raise a `ConfigError` if a setting is outside its range."""
    if not low <= number <= high:
        limit = f"at most {high:.15g}" if number > high else f"at least {low:g}"
        raise ConfigError(f"{name}={number} must be {limit}")


def keys_of(*configs: type) -> dict[str, type]:
    """Return the settings of dataclasses with the types of their defaults; None is for a number."""
    settings = (key for config in configs for key in fields(config) if key.metadata)
    return {key.name: int if key.default is None else type(key.default) for key in settings}


def validate(settings: Mapping[str, Any], known: Mapping[str, type]) -> dict[str, Any]:
    """Return the settings, whole numbers made floats where a float is meant, NumPy's Python's."""
    typed: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"unknown setting '{key}'{did_you_mean(key, known)}")
        kind = known[key]
        number: Any = str(value) if isinstance(value, Path) else plain(value)
        if kind is float and type(number) is int and abs(number) < 2**63:
            number = float(number)
        if kind is tuple and isinstance(number, list | tuple):
            parts = [validate({key: part}, {key: float}) for part in number]
            number = tuple(part[key] for part in parts)
        if type(number) is not kind or (kind is float and not math.isfinite(number)):
            raise ConfigError(f"{key}={number!r} must be {_WORDS[kind]}")
        typed[key] = number
    return typed


_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def from_text(key: str, text: str, known: Mapping[str, type]) -> Any:
    """Return the value of a setting that was typed, as `validate` does."""
    kind, value = known.get(key, str), text
    with suppress(ValueError):
        # bool("false") would be True.
        value = _TRUTHS.get(text.lower(), text) if kind is bool else kind(text)
    return validate({key: value}, known)[key]


def plain(value: Any) -> Any:
    """Return Python's number for one of NumPy; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value
