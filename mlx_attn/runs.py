"""A run directory: everything one training leaves behind, readable by every other command.

    config.json         settings, versions, digest of the text
    metrics.jsonl       one report a line
    samples.txt         what the model wrote at each validation
    tokenizer.*         the tokenizer
    model.safetensors   the weights with the lowest validation loss
    checkpoint/         the last state: weights, optimizer, random state, step

Files are replaced in one step; a directory is never overwritten without being told to.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_attn.errors import RunError
from mlx_attn.files import unwritable, write_text
from mlx_attn.model import GPT
from mlx_attn.model.config import config_from
from mlx_attn.model.weights import load_arrays, load_weights, save_arrays
from mlx_attn.text.tokenizers import Tokenizer, load_tokenizer
from mlx_attn.trees import named_arrays

RUNS = Path("runs")
"""Where runs land unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run directory."""

    path: Path
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def checkpoint(self) -> Path:
        """The file with the last state."""
        return self.path / "checkpoint" / "last.safetensors"

    @property
    def weights(self) -> Path:
        """The file with the best weights."""
        return self.path / "model.safetensors"

    def load_model(self) -> GPT:
        """The model with its best weights, ready for evaluation.

        Raises:
            RunError: The weights are missing, damaged, or of another configuration.
        """
        model = GPT(config_from(self.settings["model"]))
        arrays, _ = load_arrays(self.weights)
        load_weights(self.weights, model, arrays)
        model.eval()
        return model

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer it was trained with.

        Raises:
            RunError: It is missing or damaged.
        """
        return load_tokenizer(self.path)

    def save_model(self, model: GPT) -> None:
        """Write these weights as the best."""
        save_arrays(self.weights, named_arrays(model), {})

    def append(self, file: str, text: str) -> None:
        """Add text to the end of a file of the run, such as metrics.jsonl.

        Raises:
            RunError: It cannot be written.
        """
        try:
            with (self.path / file).open("a", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise unwritable(self.path / file, error) from error

    def metrics(self) -> list[dict[str, Any]]:
        """The reports written so far; a last line cut short by a crash is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def forget_after(self, step: int) -> None:
        """Drop reports of later steps, which a resumed training will make again."""
        kept = [json.dumps(report) for report in self.metrics() if report.get("step", 0) <= step]
        kept = [line for line in kept if '"event": "end"' not in line]
        write_text(self.path / "metrics.jsonl", "".join(f"{line}\n" for line in kept))


def create_run(path: Path, settings: Mapping[str, Any], overwrite: bool = False) -> Run:
    """Make a run directory and write its config.json.

    Raises:
        RunError: The directory exists and is not to be overwritten, or cannot be written.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        if not overwrite:
            raise RunError(
                f"{path} exists: --resume {path} goes on with it, --overwrite replaces it, "
                "--out names another directory"
            )
        _clear(path)
    write_text(path / "config.json", json.dumps(settings, indent=1, sort_keys=True) + "\n")
    return Run(path, settings)


def open_run(path: Path) -> Run:
    """The run in a directory.

    Raises:
        RunError: There is none, or its config.json is damaged.
    """
    file = path / "config.json"
    if not file.is_file():
        near = ", ".join(str(run) for run in find_runs(path.parent)[:3])
        raise RunError(f"{path} is not a run directory{f' (there are: {near})' if near else ''}")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: cannot be read ({error})") from error
    if not isinstance(settings, dict) or not {"model", "training", "text"} <= settings.keys():
        raise RunError(f"{file}: not the settings of a run")
    return Run(path, settings)


def find_runs(directory: Path = RUNS) -> list[Path]:
    """The run directories in a directory, the latest first."""
    found = directory.glob("*/config.json") if directory.is_dir() else []
    return [file.parent for file in sorted(found, key=lambda f: f.stat().st_mtime, reverse=True)]


def free_name(directory: Path, name: str) -> Path:
    """A path that does not exist yet: name, name-2, name-3, ..."""
    path, number = directory / name, 2
    while path.exists():
        path, number = directory / f"{name}-{number}", number + 1
    return path


def _clear(path: Path) -> None:
    """Empty what must be a run directory; anything else is not ours to delete."""
    if not (path / "config.json").is_file():
        raise RunError(f"{path} is not a run directory, so --overwrite leaves it alone")
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise unwritable(path, error) from error
