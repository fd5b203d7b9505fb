"""Train the models of docs/gallery.md and write their pages: `python docs/gallery.py [NAME ...]`.

Each page is one file in build/gallery that runs its model in the browser, like the pages of
`mlx-attn open`, in float16. `mkdocs build` then includes the pages. Without them it still builds
the site, and the gallery explains how to make them. All models take about ten minutes on two cores;
existing ones are not trained again. If Chromium is installed, the gallery shows a picture of each
model's heads, light and dark.
"""

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tests.chromium import Browser, find_chromium

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "gallery"
RUNS = ROOT / "build" / "gallery-runs"
FACTS = "facts.json"
"""The file next to the pages with each model's final figures, for the gallery's text."""
STORIES = "--preset tiny --emb-dim 64 --tied-head --steps 1000"
MODELS = {
    "standard": STORIES,
    "merged": f"{STORIES} --variant merged",
    "no-query": f"{STORIES} --variant no-query",
    "no-out-proj": f"{STORIES} --variant no-out-proj",
    "one-head": f"{STORIES} --n-heads 1",
    "scores-off": f"{STORIES} --variant scores-off",
    "key-as-value": f"{STORIES} --variant key-as-value",
    "sliding-window": f"{STORIES} --variant sliding-window --window 16",
}
"""The settings of each model, by the name of its page."""
THEMES = {"light": False, "dark": True}
KEPT = ("bits_per_byte", "params")


def main(names: Sequence[str]) -> None:
    """Make these pages, or all of them, and their pictures."""
    pages = [make(name) for name in names or MODELS]
    if program := find_chromium():
        browser = Browser(program, Path(tempfile.mkdtemp()))
        for page in pages:
            photograph(browser, page)
        browser.close()


def photograph(browser: Browser, page: Path) -> None:
    """Take a picture of a model's heads in each theme, and store it next to its page."""
    for theme, dark in THEMES.items():
        browser.open(page.as_uri(), dark=dark)
        browser.run("new Promise((done) => setTimeout(done, 400))")
        picture = Image.open(io.BytesIO(browser.photograph(".heads"))).convert("RGB")
        picture.save(page.with_name(f"{page.stem}-{theme}.webp"), quality=70)


def make(name: str, more: Sequence[str] = (), pages: Path = PAGES, runs: Path = RUNS) -> Path:
    """Train a model, unless it exists, and write its page.

    Args:
        name: One of `MODELS`.
        more: Further flags of `mlx-attn train`.
        pages: The folder for the page and its facts.
        runs: The folder for models.
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
