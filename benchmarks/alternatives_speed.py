"""How fast the alternatives to standard attention train and decode, beside the standard form.

    python benchmarks/alternatives_speed.py [--minutes 6]

Measures every form of the study `alternatives`, at the sizes of its first world, in turns on one
core, and writes the ratios of tokens per second to docs/answers/alternatives/speed.json, which
docs/answers/record.md prints. Run it on an idle machine.
"""

import argparse
import json
from pathlib import Path

from mlx_attn.bench.speed import bench
from mlx_attn.files import write_text
from mlx_attn.machine import blas
from mlx_attn.machine.facts import machine_kind
from mlx_attn.machine.streams import single_stream
from mlx_attn.training.config import resolve
from mlx_attn_studies.follow_ups import follow_up
from mlx_attn_studies.tables import SPEED

ANSWERS = Path(__file__).parents[1] / "docs" / "answers"
WORKS = ("train", "decode")


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0)
    minutes = parser.parse_args().minutes
    study = follow_up("alternatives")
    world = next(iter(study.worlds.values()))
    setups = {}
    for name, arm in study.arms.items():
        flat = {**world.settings, **arm.settings}
        settings = resolve(flat)
        setups[name] = settings.model_config(flat["vocab_size"]), settings.training
    blas.use_threads(1)
    measured = single_stream(lambda: [*bench(setups, WORKS, 60 * minutes)])()
    forms: dict[str, dict[str, float]] = {name: {} for name in setups}
    for row in measured:
        forms[row.name][row.work] = round(1 / row.over_first.median, 3)
    content = {"machine": machine_kind(), "minutes": minutes, "forms": forms}
    write_text(ANSWERS / "alternatives" / SPEED, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
