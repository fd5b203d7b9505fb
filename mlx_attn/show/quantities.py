"""Numbers as people read them."""

_UNITS = ("", "k", "M", "G", "T")


def count(number: int | float) -> str:
    """A count in three digits: 943, 9.43k, 94.3k, 943k, 9.43M."""
    unit = 0
    while abs(number) >= 999.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    decimals = 0 if not unit or abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{decimals}f}{_UNITS[unit]}"


def memory(n_bytes: int | float) -> str:
    """Bytes in decimal units: 20 kB, 12 MB, 1.2 GB."""
    for size, unit, decimals in ((1e9, "GB", 1), (1e6, "MB", 0)):
        if n_bytes >= size:
            return f"{n_bytes / size:.{decimals}f} {unit}"
    return f"{n_bytes / 1e3:.0f} kB"


def duration(seconds: int | float) -> str:
    """Minutes and seconds, or hours: 0:07, 1:42, 2:03:10; a dash where it is not known."""
    if not 0 <= seconds < 1e7:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plural(number: int, noun: str) -> str:
    """A number of things: 1 seed, 5 seeds."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
