"""`mlx-attn verify`: whether this machine computes the right thing."""

import json
import time

import click

from mlx_attn.cli.output import say

_EXAMPLES = """\b
Examples:
  mlx-attn verify
  mlx-attn verify --json > verify.json
  MLX_ENABLE_TF32=0 mlx-attn verify
"""


@click.command(epilog=_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, with all that is wrong.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Say whether this machine computes the right thing, in about ten seconds.

    Attention, losses, gradients, decoding and training, on the processor and on the GPU, against
    NumPy's float64. The text is made for a bug report. Exit code 0: right, 1: wrong.
    """
    from mlx_attn.machine.facts import machine_facts
    from mlx_attn.ui.terminal import print_rows, print_text, stdout_console
    from mlx_attn.verify import checks, show

    facts, console, began = machine_facts(), stdout_console(), time.perf_counter()
    if not as_json:
        print_rows(show.machine_rows(facts, checks.checked_devices()), console)
    findings = []
    for finding in checks.verify(checks.CHECKS):
        findings.append(finding)
        if not as_json:
            print_text("\n".join(show.finding_lines(finding)), console)
    seconds = time.perf_counter() - began
    if as_json:
        say(json.dumps(show.as_json(facts, findings, seconds)))
    else:
        print_text(f"{show.verdict(findings)}, in {seconds:.0f} s", console)
    ctx.exit(0 if all(finding.is_right for finding in findings) else 1)
