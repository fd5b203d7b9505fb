"""Every check, and what it found on each device of this machine.

A check compares many results with what they must be. One that fails says which kernel and which
shape; a kernel that raises fails too, with MLX's message.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlx_attn.machine.device import chosen_device, device_name, devices, on_device
from mlx_attn.verify import draws, models, operations
from mlx_attn.verify.tolerance import FLOAT32, Comparison, Rounding, measured_rounding


@dataclass(frozen=True, slots=True)
class Check:
    """A question to a device.

    Attributes:
        name: What a report calls it.
        compare: Compares, given how the device rounds products.
    """

    name: str
    compare: Callable[[Rounding], Iterator[Comparison]]

    @property
    def asks(self) -> str:
        """What it compares, the first line of the function's docstring."""
        return (self.compare.__doc__ or "").partition("\n")[0]


CHECKS = (
    Check("starting weights", models.starting_weights),
    Check("batches", models.batches_of_a_seed),
    Check("products", operations.products),
    Check("positions", operations.positions),
    Check("norms", operations.norms),
    Check("activations", operations.activations),
    Check("cross-entropy", operations.cross_entropy),
    Check("causality", operations.causality),
    Check("attention", operations.attention_kernels),
    Check("order of heads", operations.order_of_heads),
    Check("hooks", operations.hooks),
    Check("random numbers", draws.random_numbers),
    Check("sampling", draws.sampling),
    Check("golden models", models.golden_models),
    Check("cached decoding", models.cached_decoding),
    Check("greedy sampling", models.greedy_sampling),
    Check("compiling", models.compiled),
    Check("repeated training", models.repeated_training),
)
"""The parts come first: what is wrong in one of them is wrong in wholes too."""

_SLOW = {
    "causality",
    "cached decoding",
    "greedy sampling",
    "compiling",
    "random numbers",
    "sampling",
}
QUICK = tuple(check for check in CHECKS if check.name not in _SLOW)
"""What a training rests on, in about a second."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found on a device.

    Attributes:
        error: The message of what the device raised; "" where nothing was.
    """

    check: Check
    device: str  # cpu or gpu
    comparisons: Sequence[Comparison]
    seconds: float
    error: str = ""

    @property
    def wrong(self) -> list[Comparison]:
        """What differs by more than rounding, the furthest first."""
        found = [comparison for comparison in self.comparisons if not comparison.is_right]
        return sorted(found, key=lambda comparison: -comparison.share)

    @property
    def is_right(self) -> bool:
        """Whether all that was asked for was computed, and is right."""
        return not self.error and bool(self.comparisons) and not self.wrong

    @property
    def furthest(self) -> Comparison | None:
        """The comparison nearest to its tolerance, or furthest beyond it."""
        return max(self.comparisons, key=lambda comparison: comparison.share, default=None)

    @property
    def notes(self) -> list[str]:
        """What else is to be known."""
        return list(dict.fromkeys(c.note for c in self.comparisons if c.note))

    def as_dict(self) -> dict[str, Any]:
        """For a program; of the comparisons those that are wrong, else the furthest."""
        shown = self.wrong or ([self.furthest] if self.furthest else [])
        return {
            "check": self.check.name,
            "asks": self.check.asks,
            "device": self.device,
            "right": self.is_right,
            "comparisons": len(self.comparisons),
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
            "furthest": [_row(comparison) for comparison in shown],
        }


def _row(comparison: Comparison) -> dict[str, Any]:
    """What is infinite or no number has no JSON."""
    number = comparison.difference
    shown = number if abs(number) < float("inf") else None
    return {"case": comparison.case, "difference": shown, "tolerance": comparison.tolerance}


def checked_devices() -> list[str]:
    """Return the device that was chosen; if none was, all that MLX can use here."""
    return [device_name()] if chosen_device() else devices()


def verify(checks: Sequence[Check]) -> Iterator[Finding]:
    """What every check finds on every device, one after the other."""
    for name in checked_devices():
        with on_device(name):
            rounding = _rounding()
            yield from (run(check, name, rounding) for check in checks)


def run(check: Check, device: str, rounding: Rounding = FLOAT32) -> Finding:
    """What a check finds on the default device; whatever this raises is a finding too."""
    began, comparisons, error = time.perf_counter(), [], ""
    try:
        comparisons.extend(check.compare(rounding))
    except Exception as raised:
        error = " ".join(f"{type(raised).__name__}: {raised}".split())
    return Finding(check, device, comparisons, time.perf_counter() - began, error)


def _rounding() -> Rounding:
    """A device that raises here does so in the check of products too, which says it."""
    with suppress(Exception):
        return measured_rounding()
    return FLOAT32
