"""Compare the preset `speedrun` with nanoGPT's laptop setting: time and tokens to the same loss.

    python benchmarks/speedrun.py [--seeds 0 1 2 3 4] [--threads 2] [--torch-python PYTHON]
    python benchmarks/speedrun.py --minutes 5 --reference-lr 4e-3

Trains the preset once for every seed, and a share of the reference's 2000 steps after each (of
--reference-steps, if that is fewer), so that other work on the machine slows both alike. Times
include only training, without preparing the text or validation. The reference
(`nanogpt_reference.py`) needs PyTorch, in this interpreter or in the one of --torch-python.
--full-reference also trains it from start to end and validates it. --minutes instead trains both
at the same time, for that long with one thread each, for the lowest loss. Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).with_name("nanogpt_reference.py")
REFERENCE_STEPS, REFERENCE_TOKENS, TARGET = 2000, 1_536_000, 1.898


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--full-reference", action="store_true")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--reference-steps", type=int, default=REFERENCE_STEPS)
    parser.add_argument("--reference-lr", type=float, default=1e-3)
    given = parser.parse_args()
    given.threads = 1 if given.minutes else given.threads
    # Set before the first import of mlx_attn, which loads the BLAS.
    os.environ["OPENBLAS_NUM_THREADS"] = str(given.threads)
    corpus = _corpus()
    with tempfile.TemporaryDirectory() as folder:
        _save(corpus, Path(folder))
        command = [given.torch_python, str(REFERENCE), "--data-dir", folder]
        command += ["--threads", str(given.threads), "--lr", str(given.reference_lr)]
        timed = [*command, "--time-only"]
        reference(timed, 1)  # Fail early if PyTorch is missing.
        if given.minutes:
            print(json.dumps(side_by_side(command, given, Path(folder)), indent=1))  # noqa: T201
            return
        share = given.reference_steps // len(given.seeds)
        ours, theirs = [], []
        for seed in given.seeds:
            ours.append(trained(corpus, seed))
            theirs.append(reference(timed, share))
        full = reference(command, REFERENCE_STEPS) if given.full_reference else {}
    print(json.dumps(compared(ours, theirs, full), indent=1))  # noqa: T201


def trained(corpus: Any, seed: int) -> dict[str, float]:
    """Train the preset with a seed."""
    import mlx.core as mx

    from mlx_attn.arrays import count_parameters
    from mlx_attn.training.config import resolve
    from mlx_attn.training.trainer import Trainer

    trainer = Trainer(resolve({"preset": "speedrun", "seed": seed}), corpus)
    began = time.perf_counter()
    for _ in range(trainer.steps):
        trainer.launch_step()
    mx.eval(trainer.step.state)
    seconds = time.perf_counter() - began
    return {
        "seed": seed,
        "seconds": seconds,
        "tokens": trainer.steps * trainer.tokens_per_step,
        "val_loss": trainer.evaluator(trainer.model).val_loss,
        "params": count_parameters(trainer.model),
    }


def reference(command: list[str], steps: int) -> dict[str, float]:
    """Train the reference for this many steps."""
    try:
        done = subprocess.run([*command, "--steps", str(steps)], capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"error: --torch-python {command[0]}: {error.strerror}")
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


def side_by_side(command: list[str], given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train both at the same time for the same minutes, with one thread each."""
    minutes, seed = ["--minutes", str(given.minutes)], ["--seed", str(given.seeds[0])]
    ours = [sys.executable, "-m", "mlx_attn", "train", "--preset", "speedrun", "--json"]
    ours += [*minutes, *seed, "--out", str(folder / "run")]
    started = [
        subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
        for args in (ours, [*command, *minutes, *seed])
    ]
    lines = [process.communicate()[0].splitlines()[-1] for process in started]
    end, theirs = map(json.loads, lines)
    return {
        "speedrun": {key: end[key] for key in ("seconds", "steps", "tokens", "val_loss", "params")},
        "reference": theirs,
        "reference's learning rate": given.reference_lr,
    }


def compared(ours: list[dict], theirs: list[dict], full: dict) -> dict[str, Any]:
    """Return the ratios."""
    per_step = sum(run["seconds"] for run in theirs) / sum(run["steps"] for run in theirs)
    seconds = statistics.median(run["seconds"] for run in ours)
    return {
        "speedrun": ours,
        "all reach 1.898": all(run["val_loss"] <= TARGET for run in ours),
        "seconds": seconds,
        "reference seconds": per_step * REFERENCE_STEPS,
        "time / reference": seconds / (per_step * REFERENCE_STEPS),
        "tokens / reference": ours[0]["tokens"] / REFERENCE_TOKENS,
        "reference from start to end": full,
    }


def _corpus() -> Any:
    from mlx_attn.text.corpus import prepare

    return prepare("tiny-shakespeare", "char", 65)


def _save(corpus: Any, folder: Path) -> None:
    import numpy as np

    for part in ("train", "val"):
        np.save(folder / f"{part}.npy", np.asarray(getattr(corpus, part).tokens))


if __name__ == "__main__":
    main()
