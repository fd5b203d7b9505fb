"""Does the best learning rate depend on the width? Short trainings at several rates and widths.

    python benchmarks/learning_rates.py --optimizer adamw --base-width 64 [--variant merged]

The book's block without biases and learned positions, two layers and four heads, on characters of
tiny-shakespeare. For every width it prints the loss at each factor of the learning rates, the mean
of the last quarter of the steps over the seeds, and the best factor, at the vertex of the parabola
through the best three; at the end, over how many octaves the best factors are spread.
"""

import json
from statistics import fmean
from typing import Any

import click
import numpy as np

from mlx_attn.answers.training import beginning
from mlx_attn.comparison.plan import corpus_of
from mlx_attn.training.config import resolve
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.events import Stepped
from mlx_attn.training.loop import train
from mlx_attn.training.trainer import Diverged, Trainer

SETTINGS: dict[str, Any] = {
    **{"data": "tiny-shakespeare", "tokenizer": "char", "context_length": 64, "batch_size": 4},
    **{"n_layers": 2, "n_heads": 4, "position": "learned", "start": "book", "bias": False},
    **{"norm": "layernorm", "activation": "gelu", "schedule": "trapezoid", "cooldown": 0.6},
    **{"warmup": 5, "min_lr": 0.0, "eval_every": 0, "log_every": 1},
}
RATES = {"adamw": {"lr": 0.01}, "muon": {"lr": 0.02, "muon_lr": 0.03}}
"""At factor 1."""


def loss_of(settings: dict[str, Any]) -> float:
    """The mean training loss over the last quarter of the steps; 20 nats where it diverged."""
    resolved = resolve(settings)
    losses: list[float] = []
    try:
        trainer = Trainer(resolved, corpus := corpus_of(resolved))
        # Hardly any of the validation text is read: the training loss is what counts here.
        trainer.evaluator = Evaluator(beginning(corpus.val, 0.01), settings["context_length"])
        losses += [event.loss for event in train(trainer) if isinstance(event, Stepped)]
    except Diverged:
        return 20.0
    return fmean(losses[-max(1, len(losses) // 4) :])


def vertex(octaves: np.ndarray, losses: np.ndarray) -> float:
    """Where the parabola through the best three is lowest; the best itself at an end."""
    best = int(losses.argmin())
    if not 0 < best < len(losses) - 1:
        return float(octaves[best])
    near = slice(best - 1, best + 2)
    curvature, slope, _ = np.polyfit(octaves[near], losses[near], 2)
    return float(-slope / (2 * curvature))


@click.command(help=__doc__)
@click.option("--optimizer", type=click.Choice([*RATES]), default="adamw", show_default=True)
@click.option("--base-width", default=0, show_default=True)
@click.option("--variant", default="standard", show_default=True)
@click.option("--widths", default="32,64,128,256", show_default=True)
@click.option("--octaves", default="-2,-1,0,1,2", show_default=True, help="Of the factor.")
@click.option("--seeds", default=2, show_default=True)
@click.option("--steps", default=60, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(
    optimizer: str,
    base_width: int,
    variant: str,
    widths: str,
    octaves: str,
    seeds: int,
    steps: int,
    as_json: bool,
) -> None:
    """Print a line for every width."""
    places, best = [float(octave) for octave in octaves.split(",")], {}
    for width in map(int, widths.split(",")):
        same = {"optimizer": optimizer, "base_width": base_width, "variant": variant}
        losses = [
            fmean(
                loss_of(
                    SETTINGS
                    | same
                    | {"emb_dim": width, "steps": steps, "seed": seed}
                    | {key: rate * 2**octave for key, rate in RATES[optimizer].items()}
                )
                for seed in range(seeds)
            )
            for octave in places
        ]
        best[width] = vertex(np.array(places), np.array(losses))
        row = {"width": width, "losses": [round(loss, 4) for loss in losses], "best": best[width]}
        line = f"{width:6}  {'  '.join(f'{loss:.3f}' for loss in losses)}  x {2 ** best[width]:.2f}"
        click.echo(json.dumps(row) if as_json else line)
    click.echo(f"best factors over {max(best.values()) - min(best.values()):.2f} octaves", err=True)


if __name__ == "__main__":
    main()
