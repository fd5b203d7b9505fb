"""Cores, GPU and power supply of this machine, asked of its system; unknown facts are 0 or ""."""

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from mlx_attn.errors import RunError
from mlx_attn.records import Object, parse_record

_SUPPLIES = Path("/sys/class/power_supply")
"""Where Linux lists batteries and mains adapters."""

_SLOWEST = 30.0
"""Seconds that a program of macOS may take to answer."""


def system_name() -> str:
    """Return the system and, on a Mac, its version, such as "macOS 15.6"."""
    mac = platform.mac_ver()[0]
    return f"macOS {mac}" if mac else platform.system()


def core_counts() -> tuple[int, int]:
    """Return the numbers of performance cores and of efficiency cores."""
    if sys.platform != "darwin":
        return os.cpu_count() or 0, 0
    levels = _printed("sysctl", "-n", "hw.perflevel0.physicalcpu", "hw.perflevel1.physicalcpu")
    counts = [int(word) for word in levels.split() if word.isdigit()]
    performance, efficiency, *_ = [*counts, 0, 0]
    return performance, efficiency


def gpu_cores() -> int:
    """Return the number of cores of a Mac's GPU; 0 elsewhere."""
    with contextlib.suppress(RunError, ValueError, KeyError, IndexError, TypeError):
        printed = _printed("system_profiler", "SPDisplaysDataType", "-json")
        displays = parse_record(printed, Object, "system_profiler")
        return int(displays["SPDisplaysDataType"][0]["sppci_cores"])
    return 0


def power_source() -> str:
    """Return "mains" or "battery", with "low power mode" if it is on; "" if it is unknown."""
    if sys.platform != "darwin":
        return _linux_power_source()
    named = {"AC Power": "mains", "Battery Power": "battery"}
    batteries = _printed("pmset", "-g", "batt")
    source = next((name for words, name in named.items() if words in batteries), "")
    settings = dict(
        line.split()[:2] for line in _printed("pmset", "-g").splitlines() if _pair(line)
    )
    return source + ", low power mode" * (settings.get("lowpowermode") == "1")


def _linux_power_source() -> str:
    supplies: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        for supply in sorted(_SUPPLIES.iterdir()):
            kind = (supply / "type").read_text().strip()
            supplies[kind] = (supply / ("online" if kind == "Mains" else "status")).read_text()
    if supplies.get("Mains", "").strip() == "1":
        return "mains"
    return "battery" if supplies.get("Battery", "").strip() == "Discharging" else ""


def _pair(line: str) -> bool:
    return len(line.split()) >= 2


def _printed(*command: str) -> str:
    """Return the output of a program of macOS; "" if it is not there or fails."""
    if sys.platform != "darwin":
        return ""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _SLOWEST}
    try:
        return subprocess.run(command, check=True, **options).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
