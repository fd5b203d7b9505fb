"""Measure the worth of each part of the preset `speedrun` by removing one part at a time.

    python benchmarks/ablation.py [--seeds 0 1 2] [--results FILE] [--only PART ...]

Trains every arm with every seed and prints one Markdown table: the loss on the whole validation
split, the difference from the preset with the same seed, and the processor time of training, each
as mean and standard error. Each finished training adds one line to --results, so the same command
continues where it stopped. Run several at once with --only. See also `mlx-attn compare --arm`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WITHOUT: dict[str, dict[str, Any]] = {
    "the preset": {},
    "no windows": {"window": 0},
    "Muon's momentum 0.95": {"muon_momentum": 0.95},
}
"""The arms: settings that reset one part of the preset to its usual value."""

Record = dict[str, Any]


def main() -> None:
    """Train the missing arms, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=Path("ablation.jsonl"))
    parser.add_argument("--only", nargs="+", choices=WITHOUT, default=list(WITHOUT))
    given = parser.parse_args()
    for seed in given.seeds:
        for arm in given.only:
            if (arm, seed) not in {(row["arm"], row["seed"]) for row in _read(given.results)}:
                with given.results.open("a") as file:
                    file.write(json.dumps(trained(arm, seed)) + "\n")
    sys.stdout.write(table([r for r in _read(given.results) if r["seed"] in given.seeds]))


def trained(arm: str, seed: int) -> Record:
    """Train an arm with one seed and return its result."""
    from mlx_attn.text.corpus import prepare
    from mlx_attn.training.config import resolve
    from mlx_attn.training.trainer import Trainer

    corpus = prepare("tiny-shakespeare", "char", 65)
    trainer = Trainer(resolve({"preset": "speedrun", "seed": seed, **WITHOUT[arm]}), corpus)
    began, processor = time.perf_counter(), time.process_time()
    for _ in range(trainer.steps):
        loss, _ = trainer.launch_step()
        loss.item()
    return {
        "arm": arm,
        "seed": seed,
        "tokens": trainer.steps * trainer.tokens_per_step,
        "processor": time.process_time() - processor,
        "seconds": time.perf_counter() - began,
        "val_loss": trainer.evaluator(trainer.model).val_loss,
    }


def table(rows: Sequence[Record]) -> str:
    """Return the table in Markdown."""
    losses = {arm: {r["seed"]: r["val_loss"] for r in rows if r["arm"] == arm} for arm in WITHOUT}
    preset = losses["the preset"]
    lines = [
        "| | loss | difference | seeds | processor time |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for arm, by_seed in losses.items():
        shared = sorted(by_seed.keys() & preset.keys())
        if not shared:
            continue
        differences = [by_seed[seed] - preset[seed] for seed in shared]
        more = _mean_and_error(differences) if arm != "the preset" else ""
        times = [r["processor"] for r in rows if r["arm"] == arm]
        cells = [arm, f"{statistics.mean(by_seed.values()):.3f}", more, f"{len(by_seed)}"]
        lines.append(f"| {' | '.join(cells)} | {statistics.mean(times):.1f} s |")
    return "\n".join(lines) + "\n"


def _mean_and_error(numbers: Sequence[float]) -> str:
    if len(numbers) < 2:
        return f"{numbers[0]:+.3f}"
    error = statistics.stdev(numbers) / len(numbers) ** 0.5
    return f"{statistics.mean(numbers):+.3f} +- {error:.3f}"


def _read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
