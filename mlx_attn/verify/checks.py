"""List every check, and run it on each device of this machine.

A check compares many results with the expected ones. A failed check names the kernel and the shape.
A kernel that raises an error also fails, with MLX's message.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_attn.machine.device import chosen_device, device_name, devices, on_device
from mlx_attn.verify import models, operations
from mlx_attn.verify.tolerance import FLOAT32, Comparison, Rounding, measured_rounding


@dataclass(frozen=True, slots=True)
class Check:
    """A set of comparisons that runs on a device, given its rounding of products."""

    name: str
    compare: Callable[[Rounding], Iterator[Comparison]]

    @property
    def asks(self) -> str:
        """Return the description of the check: the first line of the function's docstring."""
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
    Check("random numbers", models.random_numbers),
    Check("sampling", models.sampling),
    Check("golden models", models.golden_models),
    Check("cached decoding", models.cached_decoding),
    Check("greedy sampling", models.greedy_sampling),
    Check("compiling", models.compiled),
    Check("repeated training", models.repeated_training),
)
"""Operations come first, because an error in one also makes whole models wrong."""

_SLOW = {
    *("causality", "cached decoding", "greedy sampling"),
    *("compiling", "random numbers", "sampling"),
}
QUICK = tuple(check for check in CHECKS if check.name not in _SLOW)
"""The checks that a training depends on; they take about a second."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check on a device."""

    check: Check
    device: str  # cpu or gpu
    comparisons: Sequence[Comparison]
    seconds: float
    error: str = ""  # the message of the error that the device raised, if any

    @property
    def wrong(self) -> list[Comparison]:
        """Return the comparisons that differ by more than rounding, the largest excess first."""
        found = [comparison for comparison in self.comparisons if not comparison.is_right]
        return sorted(found, key=lambda comparison: -comparison.share)

    @property
    def is_right(self) -> bool:
        """Return True if every comparison was made and is right."""
        return not self.error and bool(self.comparisons) and not self.wrong

    @property
    def furthest(self) -> Comparison | None:
        """Return the comparison nearest to its tolerance, or furthest beyond it."""
        return max(self.comparisons, key=lambda comparison: comparison.share, default=None)

    @property
    def notes(self) -> list[str]:
        """Return the notes of all comparisons."""
        return list(dict.fromkeys(c.note for c in self.comparisons if c.note))

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON record with the wrong comparisons, or else the furthest one."""
        rows = []
        for c in self.wrong or ([self.furthest] if self.furthest else []):
            number = c.difference if abs(c.difference) < float("inf") else None  # nor NaN in JSON
            rows.append({"case": c.case, "difference": number, "tolerance": c.tolerance})
        return {
            "check": self.check.name,
            "asks": self.check.asks,
            "device": self.device,
            "right": self.is_right,
            "comparisons": len(self.comparisons),
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
            "furthest": rows,
        }


def checked_devices() -> list[str]:
    """Return the chosen device, or by default all devices that MLX can use here."""
    return [device_name()] if chosen_device() else devices()


def verify(checks: Sequence[Check]) -> Iterator[Finding]:
    """Yield the finding of every check on every device."""
    for name in checked_devices():
        with on_device(name):
            rounding = measured_rounding()
            yield from (run(check, name, rounding) for check in checks)


def run(check: Check, device: str, rounding: Rounding = FLOAT32) -> Finding:
    """Run a check on the default device; an error that it raises becomes a finding."""
    began, comparisons, error = time.perf_counter(), [], ""
    try:
        comparisons.extend(check.compare(rounding))
    except Exception as raised:
        error = " ".join(f"{type(raised).__name__}: {raised}".split())
    return Finding(check, device, comparisons, time.perf_counter() - began, error)
