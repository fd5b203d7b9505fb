"""Write docs/machines.md, and the table of docs/performance.md, from the files of machines.

    python benchmarks/machines.py

It reads and checks benchmarks/machines/*.json, which `mlx-attn bench --contribute` makes.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import click

from mlx_attn.bench.contribution import Contribution, Speed, read
from mlx_attn.bench.show import half_iqr
from mlx_attn.bench.speed import MedianIQR
from mlx_attn.ui.terminal import count

ROOT = Path(__file__).parents[1]
FILES = ROOT / "benchmarks" / "machines"
PAGE, PERFORMANCE = ROOT / "docs" / "machines.md", ROOT / "docs" / "performance.md"
MARKS = "<!-- machines: made by benchmarks/machines.py -->\n", "<!-- /machines -->\n"

INTRODUCTION = """# Machines

Everybody can add a machine. In a clone of the repository, with nothing else running:

    mlx-attn bench --contribute

This takes a few minutes on each device. It writes one file into `benchmarks/machines/` and prints
its name; open a pull request with it. The file names the chip, the system and the figures, but no
user, folder, host or serial number. Compare speeds within one machine: other work on it, its
temperature and its power source change them. Kernels are what a GPU starts for one step: they are
counted, on any machine.
"""


_SHOWN = (("tiny", "train"), ("tiny", "decode"), ("macbook", "train"), ("small", "train"))
"""The presets and kinds of work in the short table."""


def machines() -> list[Contribution]:
    """Return the checked files, by chip."""
    return sorted((read(file) for file in FILES.glob("*.json")), key=lambda made: made.file_name)


def summary(contributed: Sequence[Contribution]) -> str:
    """Return a table with a row for each device: tokens per second of the standard form."""
    lines = [
        "| machine | device |" + "".join(f" `{preset}`, {work} |" for preset, work in _SHOWN),
        "|---|---|" + "---:|" * len(_SHOWN),
    ]
    for made in contributed:
        speeds = {(s.device, s.preset, s.variant, s.work): s for s in made.speeds}
        for one in made.verified:
            cells = (speeds.get((one.device, preset, "standard", work)) for preset, work in _SHOWN)
            text = " | ".join(f"{count(s.tok_s)}" if s else "" for s in cells)
            lines.append(f"| {made.chip} | {one.device} | {text} |")
    return "\n".join(lines) + "\n"


def section(made: Contribution) -> str:
    """Return everything about one machine."""
    cores = f"{made.performance_cores} cores"
    if made.efficiency_cores:
        cores = f"{made.performance_cores} performance and {made.efficiency_cores} efficiency cores"
    gpu = f", {made.gpu_cores} GPU cores" if made.gpu_cores else ""
    right = "; ".join(
        f"{one.device}: {one.right} of {one.right + len(one.wrong)} checks right, {one.rounding}"
        for one in made.verified
    )
    steps = "; ".join(
        f"{step.device}: {step.first:.2f} s, in a second process {step.second:.2f} s"
        for step in made.first_steps
    )
    facts = [
        f"{cores}{gpu}, {made.memory_bytes / 2**30:.0f} GiB, {made.system}, {made.blas}",
        f"mlx {made.mlx}, mlx_attn {made.mlx_attn} {made.commit}, measured {made.date}",
        f"power: {made.power or 'unknown'}; variables: {_variables(made)}",
        f"`mlx-attn verify`: {right}",
        f"first training step of `tiny`: {steps}",
    ]
    table = [
        "| device | preset | variant | work | tokens per second | +- | memory | kernels |",
        "|---|---|---|---|---:|---:|---:|---:|",
        *map(_row, made.speeds),
    ]
    return "\n".join([f"## {made.chip}", "", *(f"- {fact}" for fact in facts), "", *table]) + "\n"


def _variables(made: Contribution) -> str:
    return ", ".join(f"{key}={value}" for key, value in made.environment.items()) or "none"


def _row(speed: Speed) -> str:
    spread = MedianIQR(speed.tok_s, speed.tok_s_low, speed.tok_s_high)
    cells = [speed.device, speed.preset, speed.variant, speed.work, count(speed.tok_s)]
    cells += [half_iqr(spread), f"{speed.peak_memory / 1e6:.0f} MB", str(speed.kernels or "")]
    return f"| {' | '.join(cells)} |"


def page(contributed: Sequence[Contribution]) -> str:
    """Return docs/machines.md."""
    return "\n".join([INTRODUCTION, summary(contributed), *map(section, contributed)])


def with_table(text: str, table: str) -> str:
    """Return docs/performance.md with this table between its marks."""
    first, last = MARKS
    return re.sub(f"{re.escape(first)}.*?{re.escape(last)}", first + table + last, text, flags=re.S)


if __name__ == "__main__":
    found = machines()
    PAGE.write_text(page(found), encoding="utf-8")
    text = PERFORMANCE.read_text(encoding="utf-8")
    PERFORMANCE.write_text(with_table(text, summary(found)), encoding="utf-8")
    click.echo(f"wrote {PAGE} and the table of {PERFORMANCE}")
