"""Write the results of a first run into the README: `python docs/first_run.py [--seeds N]`.

Runs `python train.py` with the seeds 0 to N - 1 (20 by default) in runs/first-run, and reuses
trainings that exist. The README then shows the mean and spread of the final losses, the number of
seeds that learned to copy, the time of a training, and a story by the model of seed 0. This takes
about N minutes on two cores. Keep the machine idle, because the time is one of the figures.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from textwrap import fill
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FOLDER = ROOT / "runs" / "first-run"
MARKS = re.compile(r"(<!-- first run:.*?-->\n).*?(<!-- /first run -->)", re.DOTALL)
FIGURES = re.compile(
    r"\*\*(?P<mean>[\d.]+)\*\* bits per byte\s+"
    r"\(standard\s+deviation\s+(?P<deviation>[\d.]+)\s+over\s+(?P<seeds>\d+)\s+seeds\)"
)
"""Matches the mean of the losses and their standard deviation, for a test."""
COPIES = 0.005
"""A model copies speech if this costs it less, in bits per byte of the whole text."""
STORY = "--temp 0.8 --seed 3"
"""The options that generate the story."""

Result = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Train the missing seeds, and write the README's block."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args(arguments).seeds)
    results = [result(train(seed)) for seed in seeds]
    text = README.read_text(encoding="utf-8")
    new = block(results, story(FOLDER / "seed-0"))
    README.write_text(MARKS.sub(lambda marks: marks[1] + new + marks[2], text), encoding="utf-8")


def train(seed: int, folder: Path = FOLDER) -> Path:
    """Train as in a first run, unless the run exists; return its directory."""
    place = folder / f"seed-{seed}"
    if not place.exists():
        options = ["--seed", str(seed), "--out", str(place), "-q"]
        subprocess.run([sys.executable, str(ROOT / "train.py"), *options], check=True)
    return place


def result(run: Path) -> Result:
    """Return the last line that a training wrote: its losses, speed and memory."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1])
    if last["event"] != "end" or last["reason"] != "done":
        raise SystemExit(f"{run}: this training did not finish: remove it")
    return last


def story(run: Path) -> str:
    """Return a text that the model writes without a prompt."""
    command = [sys.executable, "-m", "mlx_attn", "sample", str(run), *STORY.split()]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return " ".join(done.stdout.split())


def block(results: Sequence[Result], text: str) -> str:
    """Return the README's block in Markdown: the losses of all seeds, and a story."""
    losses = [one["bits_per_byte"] for one in results]
    above = fmean(one["above_floor"] for one in results)
    copying = sum(one["abilities"]["copy"] < COPIES for one in results)
    seconds, speed, memory = (
        median(one[key] for one in results) for key in ("seconds", "tok_s", "peak_memory")
    )
    figures = (
        f"`python train.py` took {seconds:.0f} s on a Linux server with two cores "
        f"({speed / 1000:.0f}k tokens/s, {memory / 1e6:.0f} MB) and ended at "
        f"**{fmean(losses):.4f}** bits per byte (standard deviation {stdev(losses):.4f} over "
        f"{len(results)} seeds), {above:.3f} above the lowest loss that any model can reach on "
        f"these stories. {copying} of {len(results)} seeds learned to copy speech "
        f"(below {COPIES}). "
        f"The model of seed 0 writes (`mlx-attn sample {STORY}`):"
    )
    return f"{fill(figures, 140)}\n\n> {fill(text, 138).replace(chr(10), chr(10) + '> ')}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
