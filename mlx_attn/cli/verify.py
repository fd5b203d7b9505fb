"""`mlx-attn verify`: whether this machine computes the right thing."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.output import say
from mlx_attn.errors import plural

if TYPE_CHECKING:
    from mlx_attn.verify.checks import Finding

_EXAMPLES = """\b
Examples:
  mlx-attn verify
  mlx-attn verify --json > verify.json
  MLX_ENABLE_TF32=1 mlx-attn verify
"""


@click.command(epilog=_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, with every comparison.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Say whether this machine computes the right thing, in half a minute at most.

    Products, attention, decoding, losses and gradients, and training, on the processor and on the
    GPU. The text is made for a bug report. Products are float32; with
    MLX_ENABLE_TF32=1 a GPU may round to TF32, as it does in a training. Exit code 0: right, 1:
    wrong.
    """
    os.environ.setdefault("MLX_ENABLE_TF32", "0")  # read with the first product
    from mlx_attn.machine.facts import machine_facts
    from mlx_attn.text.show import facts_rows
    from mlx_attn.ui.terminal import print_rows, print_text, stdout_console
    from mlx_attn.verify import checks

    facts, console, began = machine_facts(), stdout_console(), time.perf_counter()
    if not as_json:
        print_rows(facts_rows(facts), console)
    findings = []
    for finding in checks.verify():
        findings.append(finding)
        if not as_json:
            print_text("\n".join(finding_lines(finding)), console)
    seconds = time.perf_counter() - began
    if as_json:
        say(json.dumps(report(facts, findings, seconds)))
    else:
        print_text(f"{verdict(findings)}, in {seconds:.0f} s", console)
    ctx.exit(0 if all(finding.is_right for finding in findings) else 1)


def finding_lines(finding: "Finding") -> list[str]:
    """Return a check, and its furthest comparison or the error, in two lines."""
    word, count = "right" if finding.is_right else "WRONG", len(finding.comparisons)
    return [
        f"{finding.device}  {word}  {finding.check:16} {finding.compares}",
        f"     {_furthest(finding)} ({plural(count, 'comparison')})",
    ]


def _furthest(finding: "Finding") -> str:
    if finding.error or not finding.furthest:
        return finding.error or "nothing was compared"
    found = finding.furthest
    bound = f"bound {found.bound:.0e}" if found.bound else "and must be the same bits"
    return f"{found.case}: differs by {found.difference:.1e}, {bound}"


def verdict(findings: "Sequence[Finding]") -> str:
    """Return the verdict in one sentence."""
    wrong, checks = [f for f in findings if not f.is_right], plural(len(findings), "check")
    if not wrong:
        return f"right: this machine computes the right thing ({checks})"
    return f"WRONG: {len(wrong)} of {checks} failed, {wrong[0].check} first: {_furthest(wrong[0])}"


def report(facts: dict[str, Any], findings: "Sequence[Finding]", seconds: float) -> dict[str, Any]:
    """Return all findings as JSON, with every comparison."""
    return {
        "right": all(finding.is_right for finding in findings),
        "verdict": verdict(findings),
        "seconds": round(seconds, 1),
        "machine": facts,
        "checks": [asdict(finding) | {"right": finding.is_right} for finding in findings],
    }
