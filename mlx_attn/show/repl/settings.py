"""The settings of a session, and how each is typed."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_attn.errors import ConfigError, nearest
from mlx_attn.sampling import SamplerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How answers are made.

    Attributes:
        sampler: How tokens are drawn.
        max_tokens: The most tokens of an answer.
        stop: Texts that end an answer.

    Raises:
        ConfigError: A value is out of its range.
    """

    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    max_tokens: int = 200
    stop: tuple[str, ...] = ()

    def __post_init__(self):
        if self.max_tokens < 1:
            raise ConfigError(f"max={self.max_tokens} must be at least 1")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings.

    Attributes:
        name: How it is typed.
        help: What it does.
        parse: The value of a typed text; raises ValueError.
        takes: What `parse` understands.
        get: Its value in settings.
        put: Settings with another value.
    """

    name: str
    help: str
    parse: Callable[[str], Any]
    takes: str
    get: Callable[[Settings], Any]
    put: Callable[[Settings, Any], Settings]


def change(settings: Settings, name: str, text: str) -> Settings:
    """Settings with one value as typed.

    Raises:
        ConfigError: The setting is unknown, or the value does not fit it.
    """
    setting = find_setting(name)
    try:
        value = setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{setting.name} takes {setting.takes}, not '{text}'") from error
    return setting.put(settings, value)


def find_setting(name: str) -> Setting:
    """The setting of that name; top_k, top-k and topk are the same.

    Raises:
        ConfigError: There is none; the nearest name is suggested.
    """
    plain = plain_name(name)
    if plain not in SETTINGS:
        names = [setting.name for setting in SETTINGS.values()]
        raise ConfigError(f"unknown setting '{name}'{nearest(name, names)}")
    return SETTINGS[plain]


def plain_name(name: str) -> str:
    """A name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def shown(settings: Settings, setting: Setting) -> str:
    """A setting's value, as it would be typed."""
    value = setting.get(settings)
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return " ".join(repr(stop)[1:-1] for stop in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _seed(text: str) -> int | None:
    return None if text.lower() in ("none", "random") else int(text)


def _stop(text: str) -> tuple[str, ...]:
    """One stop text; a typed backslash and n is a newline."""
    return () if text.lower() == "none" else (text.replace("\\n", "\n"),)


def _sampler(
    name: str, help: str, parse: Callable[[str], Any], takes: str, key: str = ""
) -> Setting:
    """A setting that is a key of the sampler's configuration."""
    key = key or name
    return Setting(
        name,
        help,
        parse,
        takes,
        lambda settings: getattr(settings.sampler, key),
        lambda settings, value: replace(
            settings, sampler=replace(settings.sampler, **{key: value})
        ),
    )


_NUMBER, _WHOLE = "a number", "a whole number"
_ROWS = (
    _sampler("temp", "temperature; 0 takes the likeliest token", float, _NUMBER),
    _sampler("top_k", "only the k likeliest tokens; 0 is all", int, _WHOLE),
    _sampler("top_p", "only the likeliest, of this probability together; 1 is all", float, _NUMBER),
    _sampler("min_p", "only those this fraction as likely as the likeliest", float, _NUMBER),
    _sampler("penalty", "for repetition; 1 is none", float, _NUMBER, "repetition_penalty"),
    _sampler(
        "seed", "the same seed, the same text; none is random", _seed, "a whole number or none"
    ),
    Setting(
        "max",
        "most tokens of an answer",
        int,
        _WHOLE,
        lambda settings: settings.max_tokens,
        lambda settings, value: replace(settings, max_tokens=value),
    ),
    Setting(
        "stop",
        r"text that ends an answer, \n is a newline; none",
        _stop,
        "a text or none",
        lambda settings: settings.stop,
        lambda settings, value: replace(settings, stop=value),
    ),
)

SETTINGS: dict[str, Setting] = {plain_name(row.name): row for row in _ROWS}
"""All settings, by plain name."""
