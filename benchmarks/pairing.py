"""Measure how much less the differences between arms vary if weights are initialised by name.

    python benchmarks/pairing.py [--world tales] [--arm no-query] [--seeds 10] [--jobs 2]

Trains the control and an arm of the study behind docs/answers.md with every seed, and the arm once
more on the same batches with different initial weights. Prints the correlation of the arm's losses
with the control's, and the standard deviation of the differences, with both initialisations.
"""

import argparse
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

FIRST_SEED, OTHER = 30_000, 50_000
"""Seeds that the study does not use, and the offset for the other initial weights."""


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", default="tales")
    parser.add_argument("--arm", default="no-query")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    runs = [
        (arm, start, seed)
        for seed in range(FIRST_SEED, FIRST_SEED + given.seeds)
        for arm, start in (("standard", 0), (given.arm, 0), (given.arm, OTHER))
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        losses = list(pool.map(partial(trained, given.world), runs))
    control, by_name, other = losses[::3], losses[1::3], losses[2::3]
    for name, arm in (("by name", by_name), ("of its own", other)):
        noise = statistics.stdev(a - c for a, c in zip(arm, control, strict=True))
        correlation = statistics.correlation(control, arm)
        sys.stdout.write(f"start {name:10}  correlation {correlation:+.2f}  noise {noise:.4f}\n")


def trained(world: str, run: tuple[str, int, int]) -> float:
    """Return the final loss, in nats per token."""
    from mlx_attn.arrays import named_arrays
    from mlx_attn.comparison.plan import corpus_of
    from mlx_attn.model.gpt import GPT
    from mlx_attn.training.config import resolve
    from mlx_attn.training.loop import train
    from mlx_attn.training.trainer import Trainer
    from mlx_attn_studies.schedule import check_texts, text_of
    from mlx_attn_studies.study import the_study

    (arm, start, seed), study = run, the_study()
    check_texts(study, [world])
    settings = resolve(study.trial(world, arm, seed, 1.0).settings)
    trainer = Trainer(settings, corpus_of(settings, text_of(study.world(world))))
    if start:
        model = GPT(trainer.model.config, seed=seed + start)
        trainer.model.load_weights(list(named_arrays(model).items()))
    for _ in train(trainer):
        pass
    return trainer.evaluator(trainer.model).val_loss


if __name__ == "__main__":
    main()
