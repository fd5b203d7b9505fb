"""One run directory: its settings, weights, reports and samples."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import unwritable, write_text
from mlx_attn.keys import keys_of, typed
from mlx_attn.model import GPT
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.weights import load_arrays, load_weights, save_arrays
from mlx_attn.text.tokenizers import Tokenizer, load_tokenizer
from mlx_attn.trees import named_arrays

CONFIG = "config.json"
FILES = (
    CONFIG,
    "metrics.jsonl",
    "samples.txt",
    "tokenizer.*",
    "model.safetensors",
    "checkpoint",
    "track",
    "report.html",
)
"""A run's own files: what overwriting it removes."""

SAMPLE_HEADING = re.compile(r"^--- step (\d+)$", re.MULTILINE)


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

    def load_model(self, weights: Path | None = None) -> GPT:
        """The model with its best weights, ready for evaluation.

        Args:
            weights: Another file of weights, such as a snapshot's.

        Raises:
            RunError: The weights are missing, damaged, or of another configuration.
        """
        weights = weights or self.weights
        arrays, _ = load_arrays(weights)
        try:
            model = GPT(config_from(typed(self.settings["model"], keys_of(GPTConfig))))
        except ConfigError as error:
            raise RunError(f"{self.path / CONFIG}: {error}") from error
        load_weights(weights, model, arrays)
        model.eval()
        return model

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer it was trained with.

        Raises:
            RunError: It is missing or damaged.
        """
        return load_tokenizer(self.path)

    def save_model(self, model: GPT) -> None:
        """Write these weights as the best.

        Raises:
            RunError: The file cannot be written.
        """
        save_arrays(self.weights, named_arrays(model), {})

    def add_report(self, record: Mapping[str, Any]) -> None:
        """Add a report to metrics.jsonl.

        Raises:
            RunError: It cannot be written.
        """
        self.append("metrics.jsonl", json.dumps(record, allow_nan=False) + "\n")

    def add_sample(self, step: int, text: str) -> None:
        """Add what the model wrote after a step to samples.txt.

        Raises:
            RunError: It cannot be written.
        """
        self.append("samples.txt", f"--- step {step}\n{text}\n\n")

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
        """The reports written so far; a last line cut short by a crash is left out.

        Raises:
            RunError: The file cannot be read, or a line in it is damaged.
        """
        path = self.path / "metrics.jsonl"
        lines = read_text(path).split("\n")[:-1] if path.exists() else []
        return [
            parsed_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)
        ]

    def forget_after(self, step: int) -> None:
        """Drop reports and samples of later steps, which a resumed training will make again.

        The report of its end, which is of no step, goes too.

        Raises:
            RunError: A file cannot be read or written.
        """
        reports = [r for r in self.metrics() if "step" in r and r["step"] <= step]
        lines = (json.dumps(report) + "\n" for report in reports)
        write_text(self.path / "metrics.jsonl", "".join(lines))
        samples = self.path / "samples.txt"
        if samples.exists():
            write_text(samples, _samples_until(step, read_text(samples)))

    def with_settings(self, settings: Mapping[str, Any]) -> "Run":
        """The run with other settings in its config.json.

        Raises:
            RunError: The file cannot be written.
        """
        text = json.dumps(settings, indent=1, sort_keys=True, allow_nan=False)
        write_text(self.path / CONFIG, text + "\n")
        return Run(self.path, settings)


def read_text(path: Path) -> str:
    """The text of a file of a run.

    Raises:
        RunError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from error


def parsed_object(text: str, place: str) -> dict[str, Any]:
    """The JSON object that a text holds.

    Args:
        text: The text.
        place: Where it is from, for the error.

    Raises:
        RunError: It is damaged.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise RunError(f"{place}: damaged ({error})") from error
    if not isinstance(content, dict):
        raise RunError(f"{place}: damaged (not a JSON object)")
    return content


def _samples_until(step: int, samples: str) -> str:
    """The samples up to a step; each is headed by its own."""
    later = (m.start() for m in SAMPLE_HEADING.finditer(samples) if int(m[1]) > step)
    return samples[: next(later, None)]
