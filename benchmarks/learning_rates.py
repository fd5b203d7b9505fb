"""Find out if the best learning rate depends on the width, by training at several of both.

    python benchmarks/learning_rates.py [--optimizer adamw --base-width 64] [--arm merged]

Trains an arm of docs/answers.md in the world shakespeare at several widths, with its rates times
each factor. Uses the records of docs/answers if they exist, and stores new ones in --out. For every
width it prints the mean loss over the seeds at each factor, and the best factor for the mean and
for every seed: the vertex of the parabola through the losses within an octave of the lowest. At the
end it prints the range of the best factors in octaves.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import numpy as np

from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.trial import loss_of, train_trial
from mlx_attn_studies.book import RecordBook
from mlx_attn_studies.study import Study, the_study

WORLD = "shakespeare"
RATES = {"muon": {}, "adamw": {"optimizer": "adamw", "lr": 0.01}}
"""The settings of each optimizer, at factor 1."""
KNOWN = (Path("docs/answers/records"), Path("docs/answers/widths/records"))


def study_of(widths: list[int], changes: dict) -> Study:
    """Return the first study with a world for each width."""
    study = the_study()
    worlds = {}
    for width in widths:
        world = study.world(WORLD)
        settings = world.settings | {"emb_dim": width} | changes
        worlds[f"width-{width}"] = msgspec.structs.replace(world, settings=settings)
    return msgspec.structs.replace(study, worlds=worlds, questions={})


def losses_of(
    study: Study, arm: str, scales: list[float], seeds: int, book: RecordBook
) -> Iterator[tuple[str, np.ndarray]]:
    """Return each world's losses, with a row for each factor and a column for each seed."""
    known = {key: one for folder in KNOWN for key, one in RecordBook(folder).records.items()}

    def loss(trial: Trial) -> float:
        if trial.key in known:
            return loss_of(known[trial.key].outcome())
        if trial not in book and (outcome := train_trial(trial)):
            book[trial] = outcome
        return loss_of(book[trial])

    tuning = study.protocol.tuning_seeds[:seeds]
    for world in study.worlds:
        rows = [[loss(study.trial(world, arm, seed, scale)) for seed in tuning] for scale in scales]
        yield world, np.array(rows)


def vertex(octaves: np.ndarray, losses: np.ndarray) -> float:
    """Return the vertex of the parabola through the points near the lowest, or an end point."""
    best = int(losses.argmin())
    if not 0 < best < len(losses) - 1:
        return float(octaves[best])
    near = np.abs(octaves - octaves[best]) <= 1.01
    curvature, slope, _ = np.polyfit(octaves[near], losses[near], 2)
    return float(-slope / (2 * curvature))


@click.command(help=__doc__)
@click.option("--optimizer", type=click.Choice([*RATES]), default="muon", show_default=True)
@click.option("--base-width", default=0, show_default=True)
@click.option("--arm", default="standard", show_default=True)
@click.option("--widths", default="32,64,128,256", show_default=True)
@click.option("--factors", default="0.5,0.7071,1,1.4142,2", show_default=True)
@click.option("--seeds", type=click.IntRange(1, 3), default=3, show_default=True)
@click.option("--steps", default=0, show_default="those of the study")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/learning-rates"))
@click.option("--json", "as_json", is_flag=True)
def main(
    optimizer: str,
    base_width: int,
    arm: str,
    widths: str,
    factors: str,
    seeds: int,
    steps: int,
    out: Path,
    as_json: bool,
) -> None:
    """Train, and print a line for every width."""
    changes = RATES[optimizer] | ({"base_width": base_width} if base_width else {})
    study = study_of([*map(int, widths.split(","))], changes | ({"steps": steps} if steps else {}))
    scales, best = [*map(float, factors.split(","))], list[float]()
    for world, losses in losses_of(study, arm, scales, seeds, RecordBook(out)):
        octaves, means = np.log2(scales), losses.mean(axis=1)
        best.append(vertex(octaves, means))
        if as_json:
            record = {"world": world, "losses": means.round(4).tolist(), "best": best[-1]}
            click.echo(json.dumps(record))
            continue
        each = [round(vertex(octaves, column), 2) for column in losses.T]
        said = "  ".join(f"{mean:.3f}" for mean in means)
        click.echo(f"{world:10}  {said}  x {2 ** best[-1]:.2f}  octaves by seed {each}")
    click.echo(f"best factors over {max(best) - min(best):.2f} octaves", err=True)


if __name__ == "__main__":
    main()
