"""What each of two processes runs for the tests of ranks: all exchanges and trainings, one by one.

Arguments: a folder with the text, where rank 0 keeps its runs, and where every rank leaves what
came of it as a JSON file named by its rank; "compiled" for the compiled training alone,
"overlapped" for one whose gradients go in small messages, as beside a GPU's backward pass.
"""

import json
import sys
from pathlib import Path
from typing import Any

# Before MLX, because it loads the BLAS.
import mlx_attn  # noqa: F401

# isort: split
import mlx.core as mx
import numpy as np

from mlx_attn.arrays import named_arrays
from mlx_attn.errors import ConfigError
from mlx_attn.machine import messages
from mlx_attn.machine.device import gpu_path
from mlx_attn.run_directory import open_run
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.training.config import resolve
from mlx_attn.training.distributed import SINGLE_PROCESS, Distributed, init_distributed
from mlx_attn.training.events import Ended, Evaluated, Stepped
from mlx_attn.training.loop import train
from mlx_attn.training.trainer import Trainer
from tests.runs import create_run

RECIPE: dict[str, Any] = {
    "preset": "nano",
    "context_length": 16,
    "emb_dim": 16,
    "n_heads": 2,
    "n_layers": 2,
    "batch_size": 8,
    "steps": 12,
    "eval_every": 6,
    "log_every": 1,
    "lr": 3e-3,
    "tokenizer": "char",
}
NOISY = {"drop_rate": 0.3, "steps": 8, "eval_every": 3}
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw"},
    "muon": {"optimizer": "muon"},
    "parts": {"optimizer": "adamw", "accumulate": 2, "batch_size": 4},
    "compiled": {"optimizer": "adamw", "compile": "on"},
    "overlapped": {"optimizer": "muon", "compile": "off"},
}


def corpus_of(folder: Path, name: str = "text.txt") -> Corpus:
    return prepare(str(folder / name), "char", directory=folder / "data")


def trainer_of(
    corpus: Corpus, ranks: Distributed, run: Path | None = None, **changes: Any
) -> Trainer:
    """A trainer, with a run directory on rank 0 alone."""
    trainer = Trainer(resolve(RECIPE, changes), corpus, ranks)
    if run and not ranks.rank:
        trainer.run = create_run(run, trainer.settings.record(trainer.model.config))
    return trainer


def outcome(trainer: Trainer, stop_at: int | None = None) -> dict[str, Any]:
    """What a training reports, and the weights that it ends with."""
    reports = list(train(trainer, lambda: trainer.progress.step == stop_at))
    weights = {name: np.array(a) for name, a in named_arrays(trainer.model).items()}
    return {
        "losses": [r.loss for r in reports if isinstance(r, Stepped)],
        "val_losses": [r.evaluation.val_loss for r in reports if isinstance(r, Evaluated)],
        "end": [(r.steps, r.reason) for r in reports if isinstance(r, Ended)],
        "weights": [float(np.abs(w.astype(np.float64)).sum()) for w in weights.values()],
    }


def exchanges(ranks: Distributed) -> dict[str, Any]:
    """What comes of every method of `Ranks`."""
    mx.random.seed(ranks.random_seed(seed=1, step=2))
    return {
        "rank": [ranks.rank, ranks.size],
        "gather": ranks.gather({"said": "é" * (1 + 99 * ranks.rank)}),
        "first": ranks.first(ranks.rank + 7),
        "share": list(ranks.share(range(5))),
        "part": ranks.part(mx.arange(4)).tolist(),
        "sum": ranks.sum(mx.array([1, 10 * ranks.rank])).tolist(),
        "broadcast": ranks.broadcast({"a": mx.array(ranks.rank + 3)})["a"].item(),
        "average": ranks.average({"x": [mx.array(float(ranks.rank))]})["x"][0].item(),
        "drawn": mx.random.uniform().item(),
    }


def compiled(folder: Path, ranks: Distributed) -> dict[str, Any]:
    return {"compiled": outcome(trainer_of(corpus_of(folder), ranks, **KINDS["compiled"]))}


def overlapped(folder: Path, ranks: Distributed) -> dict[str, Any]:
    messages.MESSAGE, messages.ONE_MESSAGE = 2**12, 0
    with gpu_path():
        trainer = trainer_of(corpus_of(folder), ranks, **KINDS["overlapped"])
        return {"overlapped": outcome(trainer)}


def everything(folder: Path, ranks: Distributed) -> dict[str, Any]:
    corpus = corpus_of(folder)
    results: dict[str, Any] = {"exchanges": exchanges(ranks)}
    for name in ("adamw", "muon", "parts"):
        results[name] = outcome(trainer_of(corpus, ranks, folder / name, **KINDS[name]))
    results["straight"] = outcome(trainer_of(corpus, ranks, **NOISY))
    asked_by_one = 4 if ranks.rank == 1 else None
    results["stopped"] = outcome(trainer_of(corpus, ranks, folder / "noisy", **NOISY), asked_by_one)
    resumed = trainer_of(corpus, ranks, **NOISY)
    if not ranks.rank:
        resumed.resume(open_run(folder / "noisy"))
    results["resumed"] = outcome(resumed)
    results["minutes"] = outcome(
        trainer_of(corpus, ranks, steps=0, minutes=[0.01, 5.0][ranks.rank], eval_every=5)
    )
    text = "other.txt" if ranks.rank else "text.txt"
    try:
        next(train(trainer_of(corpus_of(folder, text), ranks)))
    except ConfigError as error:
        results["refusal"] = str(error)
    return results


if __name__ == "__main__":
    here = Path(sys.argv[1])
    joined = init_distributed(60.0, lambda message: sys.exit(message))
    assert joined is not SINGLE_PROCESS
    wanted = {"compiled": compiled, "overlapped": overlapped}.get(sys.argv[-1], everything)
    (here / f"{joined.rank}.json").write_text(json.dumps(wanted(here, joined)))
    joined.gather("done")
