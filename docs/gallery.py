"""Trains the models of docs/gallery.md and writes their pages: `python docs/gallery.py [NAME ...]`.

Each page is one file in build/gallery that runs its model in the browser, as `mlx-attn open` makes
it, in float16. `mkdocs build` then shows them; without them the site is built too, and its gallery
says how to make them. About five minutes on two cores for all; what is there is not trained again.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "gallery"
RUNS = ROOT / "build" / "gallery-runs"
FACTS = "facts.json"
"""Beside the pages: what each model's training ended with, for the gallery's text."""
STORIES = "--preset nano --n-heads 4 --emb-dim 48 --tied-head --steps 600"
MODELS = {
    "standard": STORIES,
    "merged": f"{STORIES} --variant merged",
    "no-query": f"{STORIES} --variant no-query",
    "no-out-proj": f"{STORIES} --variant no-out-proj",
    "one-head": f"{STORIES} --n-heads 1",
    "scores-off": f"{STORIES} --variant scores-off",
    "recall": "--data recall",
    "shared-query-key": "--data permuted-recall --variant shared-query-key",
}
"""What is trained, by the name of its page."""
KEPT = ("val_loss", "bits_per_byte", "accuracy", "params")


def main(names: Sequence[str]) -> None:
    """Make these pages, or all."""
    for name in names or MODELS:
        make(name)


def make(name: str, more: Sequence[str] = (), pages: Path = PAGES, runs: Path = RUNS) -> Path:
    """Train a model, unless it is there, and write its page.

    Args:
        name: One of `MODELS`.
        more: Further flags of `mlx-attn train`.
        pages: Where the page and its facts go.
        runs: Where models are kept.
    """
    run, page = runs / name, pages / f"{name}.html"
    if not run.exists():
        _mlx_attn("train", *MODELS[name].split(), *more, "--out", str(run), "-q")
    pages.mkdir(parents=True, exist_ok=True)
    _mlx_attn("open", str(run), "--html", str(page), "--dtype", "float16", "--no-browser")
    last = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    file = pages / FACTS
    facts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    facts[name] = {key: last[key] for key in KEPT} | {"bytes": page.stat().st_size}
    file.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return page


def _mlx_attn(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "mlx_attn", *arguments], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
