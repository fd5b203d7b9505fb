"""The folders where a system keeps what programs leave for their user."""

import os
import sys
from pathlib import Path


def user_directory(kind: str) -> Path:
    """Return this program's folder in the user's: "cache", or "state" between runs."""
    if sys.platform == "darwin":
        mac = {"cache": "Library/Caches", "state": "Library/Application Support"}
        return Path.home() / mac[kind] / "mlx_attn"
    usual = {"cache": ".cache", "state": ".local/state"}
    named = os.environ.get(f"XDG_{kind.upper()}_HOME")
    return Path(named or Path.home() / usual[kind]) / "mlx_attn"
