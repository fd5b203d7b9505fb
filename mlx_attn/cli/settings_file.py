"""`--config FILE.toml`: one layer of settings, flat or in the tables model, training and text."""

import tomllib
from pathlib import Path
from typing import Any

from mlx_attn.errors import ConfigError, RunError, nearest

TABLES = ("model", "training", "text")


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, flattened.

    Raises:
        RunError: The file cannot be read or is not TOML.
        ConfigError: It has a table of another name.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RunError(f"{path}: cannot be read as TOML ({error})") from error
    settings: dict[str, Any] = {}
    for key, value in content.items():
        if not isinstance(value, dict):
            settings[key] = value
        elif key in TABLES:
            settings |= value
        else:
            raise ConfigError(f"{path}: unknown table [{key}]{nearest(key, TABLES)}")
    return settings
