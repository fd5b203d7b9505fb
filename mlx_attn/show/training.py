"""A training from first table to last line, for whoever sits in front of it."""

import json
from collections.abc import Callable

from rich.console import Console

from mlx_attn.sampling import SamplerConfig, stream
from mlx_attn.show.plan import plan_rows, print_plan
from mlx_attn.show.progress import Display, closing_lines
from mlx_attn.text.corpus import Corpus
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.loop import train
from mlx_attn.training.reports import Ended, Evaluated, Report, as_record
from mlx_attn.training.trainer import Trainer

SAMPLE_TOKENS = 120


def show_plan(trainer: Trainer, corpus: Corpus, console: Console) -> None:
    """What is about to be trained."""
    print_plan(plan_rows(trainer.settings, trainer.model.config, corpus), console)


def follow(trainer: Trainer, display: Display, asked: Callable[[], bool], silent: bool) -> str:
    """Train, show and store every report; return why the training ended.

    Reports go to metrics.jsonl and, at every validation, a sample to samples.txt.
    """
    writes, reason, closing = _Writer(trainer), "", []
    with display:
        for report in train(trainer, asked):
            display(report)
            writes(report)
            if isinstance(report, Ended):
                reason, closing = report.reason, closing_lines(report)
    if not silent:
        for line in [*closing, *_what_next(trainer, reason, writes.sample)]:
            display.message(line)
    return reason


class _Writer:
    """Stores reports and samples in the run directory."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.run, self.sample = trainer, trainer.run, ""
        self._tokenizer = self.run.load_tokenizer() if self.run else None

    def __call__(self, report: Report) -> None:
        if not self.run or not self._tokenizer:
            return
        self.run.append("metrics.jsonl", json.dumps(as_record(report)) + "\n")
        if isinstance(report, Evaluated):
            self.sample = write_sample(self.trainer, self._tokenizer)
            self.run.append("samples.txt", f"--- step {report.step}\n{self.sample}\n\n")


def write_sample(trainer: Trainer, tokenizer: Tokenizer) -> str:
    """What the model writes after a newline, now."""
    model = trainer.model
    model.eval()
    pieces = stream(model, tokenizer, "\n", SamplerConfig(temp=0.8, seed=0), SAMPLE_TOKENS)
    text = "".join(piece.text for piece in pieces)
    model.train()
    return text


def _what_next(trainer: Trainer, reason: str, sample: str) -> list[str]:
    if not trainer.run:
        return []
    path = trainer.run.path
    if reason == "interrupted":
        return [f"saved; go on with:  mlx-attn train --resume {path}"]
    return [f"it writes: {sample.strip()}", f"talk to it:  mlx-attn repl {path}"]
