"""Numbers as people read them."""


def count(number: float) -> str:
    """A count in three digits: 943, 9.4k, 943k, 9.4M."""
    for unit in ("", "k", "M", "G"):
        if abs(number) < 999.5 or unit == "G":
            digits = 0 if abs(number) >= 99.5 or not unit else 1
            return f"{number:.{digits}f}{unit}"
        number /= 1000
    raise AssertionError("unreachable")


def memory(n_bytes: float) -> str:
    """Bytes in decimal units: 12 MB, 1.2 GB."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours: 0:07, 1:42, 2:03:10; a dash where it is not known."""
    if not 0 <= seconds < 1e7:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
