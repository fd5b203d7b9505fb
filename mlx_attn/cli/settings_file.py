"""`--config FILE.toml`: one layer of settings, flat or in the tables model, training and text."""

import tomllib
from pathlib import Path
from typing import Any

from mlx_attn.errors import ConfigError, RunError, nearest
from mlx_attn.training.settings import expanded

TABLES = ("model", "training", "text")


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, flattened.

    Raises:
        RunError: The file cannot be read or is not TOML.
        ConfigError: It has a table or a setting that there is not, or a value of another type.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RunError(f"{path}: cannot be read as TOML ({error})") from error
    settings: dict[str, Any] = {}
    try:
        for key, value in content.items():
            settings |= _table(key, value) if isinstance(value, dict) else {key: value}
        expanded(settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return settings


def _table(name: str, table: dict[str, Any]) -> dict[str, Any]:
    if name not in TABLES:
        raise ConfigError(f"unknown table [{name}]{nearest(name, TABLES)}")
    return table
