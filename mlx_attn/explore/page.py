"""Write one HTML file with models and a script that runs them: no network, no other files."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlx_attn.explore.home import Home, home_of
from mlx_attn.explore.manifest import PageModel, page_model
from mlx_attn.explore.passages import example_texts, training_words
from mlx_attn.explore.show import WINDOWS, head_numbers
from mlx_attn.files import check_page, write_bytes
from mlx_attn.run_directory import Run
from mlx_attn.runs import RUNS
from mlx_attn.text.downloads import Progress
from mlx_attn.training.summaries import summarise_runs
from mlx_attn.ui.plots import COLOURS, template

MODULES = (
    *("tensor", "tokenizer", "graph", "attention", "model"),
    *("draw", "words", "steps", "reading", "heads", "pane", "differences"),
    *("home", "view"),
)
"""The modules of the page's script; each uses only earlier ones."""

_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)


def render_page(models: Sequence[PageModel], texts: Sequence[str], at_heads: bool = False) -> str:
    """Return the page as text.

    Args:
        models: One model, or two to compare on one text.
        texts: Example texts; the page opens with the first one.
        at_heads: If True, the page opens at the heads' numbers.
    """
    names = [model.facts["name"] for model in models]
    one = f"What does {names[0]} attend to, and what does it need?"
    title = one if len(names) == 1 else f"Where do {' and '.join(names)} differ?"
    return _rendered(title, models, {"texts": [*texts], "at_heads": at_heads})


def render_home(home: Home) -> str:
    """Return the home page of runs as text."""
    return _rendered("Your runs", home.models, {"home": {"rows": home.rows, "colours": COLOURS}})


def _rendered(title: str, models: Sequence[PageModel], data: Mapping[str, Any]) -> str:
    style, script = template("page.css") + _web("explore.css"), page_script()
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        "style": style,
        "data": _json({"models": [model.facts for model in models], **data}),
        "weights": "\n".join(
            f'<script type="text/plain" id="weights-{i}">{model.weights}</script>'
            for i, model in enumerate(models)
        ),
        "script": script,
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], _web("explore.html"))


def write_home(
    path: Path | None = None,
    directory: Path = RUNS,
    dtype: str = "float16",
    progress: Progress | None = None,
    overwrite: bool = False,
) -> tuple[Path, int]:
    """Write the home page of the runs in a directory; return its path and its size in bytes.

    Args:
        path: The file to write; home.html in the directory by default.
        directory: The directory of the runs.
        dtype: See `page_model`.
        progress: Called with the bytes done and in all while a text is downloaded.
        overwrite: If True, replace a file that this program did not write.

    Raises:
        RunError: The page cannot be written.
    """
    path = path or directory / "home.html"
    check_page(path, overwrite)
    numbers = partial(head_numbers, windows=WINDOWS)
    home = home_of(summarise_runs(directory), dtype, progress=progress, numbers=numbers)
    content = render_home(home).encode()
    write_bytes(path, content)
    return path, len(content)


def write_page(
    runs: Sequence[Run],
    texts: Sequence[str] | None = None,
    path: Path | None = None,
    dtype: str = "float32",
    progress: Progress | None = None,
    overwrite: bool = False,
    windows: int | None = None,
) -> tuple[Path, int]:
    """Write the page of one run or two; return its path and its size in bytes.

    Args:
        runs: One run, or two to compare on one text.
        texts: Example texts; by default from the first run's validation text.
        path: The file to write; explore.html in the first run by default.
        dtype: See `page_model`.
        progress: Called with the bytes done and in all while a text is downloaded.
        overwrite: If True, replace a file that this program did not write.
        windows: If given, the page opens at the heads' numbers, measured on this many windows of
            validation text, or on the first text if 0.

    Raises:
        ConfigError: The page cannot compute a model; the message names the choice.
        RunError: A run cannot be read, or the page cannot be written.
    """
    path = path or runs[0].path / "explore.html"
    check_page(path, overwrite)
    count = windows if windows is not None else 0 if texts else WINDOWS
    texts = [*(texts or example_texts(runs[0], progress))]
    models = [
        page_model(run, dtype, training_words(run, progress), head_numbers(run, texts[0], count))
        for run in runs
    ]
    content = render_page(models, texts, at_heads=windows is not None).encode()
    write_bytes(path, content)
    return path, len(content)


def page_script() -> str:
    """Join the modules into one script without imports and exports."""
    text = "\n".join(_web(f"{name}.js") for name in MODULES)
    return re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)


def _web(name: str) -> str:
    return (files("mlx_attn.explore") / "web" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(data: Any) -> str:
    """Return JSON that cannot close the HTML element around it."""
    return json.dumps(data, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
