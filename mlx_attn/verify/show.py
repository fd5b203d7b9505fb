"""Write the findings of `verify` as text for a bug report, and as JSON."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from mlx_attn.errors import plural
from mlx_attn.verify.checks import Comparison, Finding

REPORT_LINES = 5
"""The largest number of wrong comparisons listed per check; JSON has all."""
_NAMES = {"cpu": "processor", "gpu": "GPU"}


def machine_rows(facts: dict[str, Any], devices: Sequence[str]) -> list[tuple[str, str]]:
    """Return rows with the versions and the machine."""
    versions = ", ".join(f"{name} {facts[name]}" for name in ("mlx_attn", "mlx", "numpy", "python"))
    where = " and ".join(_NAMES[name] for name in devices)
    return [
        ("versions", versions),
        ("machine", f"{facts['chip']}, {facts['platform']}"),
        ("blas", str(facts["blas"])),
        ("verified", where if "gpu" in devices else f"{where} alone: MLX finds no GPU here"),
        *([("MLX_ENABLE_TF32", tf32)] if (tf32 := os.environ.get("MLX_ENABLE_TF32")) else []),
    ]


def finding_lines(finding: Finding) -> list[str]:
    """Return a line about a check, followed by its wrong comparisons."""
    word = "right" if finding.is_right else "WRONG"
    lines = [f"{finding.device}  {word}  {finding.check.name:18} {_summary(finding)}".rstrip()]
    if finding.error:
        lines.append(f"     could not go on: {finding.error}")
    lines += [f"     {_difference(comparison)}" for comparison in finding.wrong[:REPORT_LINES]]
    if (more := len(finding.wrong) - REPORT_LINES) > 0:
        lines.append(f"     and {more} more")
    return lines


def _summary(finding: Finding) -> str:
    compared, furthest = plural(len(finding.comparisons), "comparison"), finding.furthest
    if not finding.is_right or furthest is None:
        return compared
    notes = "".join(f"; {note}" for note in finding.notes)
    if not furthest.difference:
        return f"{compared}, all exact{notes}"
    largest = f"{furthest.difference:.0e} (tolerance {furthest.tolerance:.0e})"
    return f"{compared}, largest difference {largest}{notes}"


def _difference(wrong: Comparison) -> str:
    if not wrong.tolerance:
        return f"{wrong.case}: differs, and must be the same bits"
    return f"{wrong.case}: differs by {wrong.difference:.1e} (tolerance {wrong.tolerance:.0e})"


def verdict(findings: Iterable[Finding]) -> str:
    """Return the verdict in one sentence."""
    findings = list(findings)
    wrong = [finding for finding in findings if not finding.is_right]
    if not wrong:
        return f"right: this machine computes the right thing ({plural(len(findings), 'check')})"
    first = wrong[0]
    shown = first.error or (_difference(first.wrong[0]) if first.wrong else "nothing was compared")
    return (
        f"WRONG: {len(wrong)} of {plural(len(findings), 'check')} failed, first "
        f"{first.check.name} on the {_NAMES[first.device]}: {shown}"
    )


def as_json(facts: dict[str, Any], findings: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """Return all findings as JSON."""
    return {
        "right": all(finding.is_right for finding in findings),
        "verdict": verdict(findings),
        "seconds": round(seconds, 1),
        "tf32": os.environ.get("MLX_ENABLE_TF32", ""),
        "machine": facts,
        "devices": list(dict.fromkeys(finding.device for finding in findings)),
        "checks": [finding.as_dict() for finding in findings],
    }
