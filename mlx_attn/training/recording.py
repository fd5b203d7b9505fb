"""Where the events of a training are kept: in its run directory, and with a logger of the user.

The loggers TensorBoard, Weights & Biases and Trackio are no dependencies; `--log-to` imports the
one that it names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_attn.errors import optional
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.runs import LoadedRun
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.text.corpus import Split
from mlx_attn.text.tasks import ABILITIES
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.events import Evaluated, Event, Stepped, as_record
from mlx_attn.training.trainer import Trainer

SAMPLE_TOKENS = 120


class RunRecorder:
    """Stores events and samples in the run directory; first deletes those after the checkpoint.

    Args:
        trainer: The training.
        log: Receives the events too; see `logging_to`.
    """

    def __init__(self, trainer: Trainer, log: Callable[[Event], None] = lambda event: None):
        self.trainer, self.log, self.sample = trainer, log, ""
        if trainer.run:
            # Events after the checkpoint will happen again; the reports must not have them twice.
            step, evaluated, tracked = trainer.progress.latest
            to_come = {"start": True, "step": bool(trainer.progress.losses)}
            to_come |= {"eval": evaluated != step, "track": tracked != step}
            trainer.run.forget_after(step, [event for event in to_come if to_come[event]])

    def __call__(self, event: Event) -> None:
        """Store one event: in metrics.jsonl, and with a validation a sample in samples.txt."""
        run = self.trainer.run
        if not run:
            return
        run.add_report(as_record(event))
        self.log(event)
        if isinstance(event, Evaluated):
            self.sample = write_sample(run, self.trainer)
            run.add_sample(event.step, self.sample)


def write_sample(run: Run, trainer: Trainer) -> str:
    """Return a sample of the model's output: a text from nothing, or its answers to a task."""
    model, split, tokenizer = trainer.model, trainer.corpus.val, trainer.corpus.tokenizer
    model.eval()
    if split.scored is None:
        loaded = LoadedRun(run, model, tokenizer)
        # A fixed seed: samples of one training differ only by its weights.
        sampler = SamplerConfig(temp=0.8, seed=0)
        steps = loaded.stream("", sampler, SAMPLE_TOKENS, loaded.document_ends)
        text = "".join(step.text for step in steps)
    else:
        text = task_predictions(model, split, tokenizer)
    model.train()
    return text


def task_predictions(model: GPT, split: Split, tokenizer: Tokenizer) -> str:
    """Return the first document of a task with the model's answers.

    A wrong answer is followed by the right one in brackets: `k3 v5[v1]`. The model must be in
    evaluation mode.
    """
    # One document, [N] tokens.
    starts, abilities = np.asarray(split.document_starts), np.asarray(split.token_abilities)
    document = slice(starts[0], starts[1])
    tokens, asked = split.tokens[document], abilities[document] == ABILITIES.index("answer")
    # [1, N, V] -> [N]
    likeliest = np.array(model(mx.array(tokens[None])).argmax(axis=-1))[0]
    texts = [tokenizer.decode([token]) for token in tokens]
    # Position i predicts token i + 1.
    for i in np.flatnonzero(asked[1:] & (likeliest[:-1] != tokens[1:])):
        texts[i + 1] = f"{tokenizer.decode([likeliest[i]])}[{texts[i + 1].strip()}]"
    return "".join(texts).strip()


LOGGERS = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}
"""Modules by their name in `--log-to`."""

_NOT_CURVES = {"event", "step", "steps", "best", "seconds_left"}


def load_logger(name: str) -> Any:
    """Return the module of a logger.

    Raises:
        RunError: It is not installed.
    """
    module = LOGGERS[name]
    return optional(module, f"--log-to needs {module}: pip install {module}")


@contextmanager
def logging_to(name: str, run: Run | None) -> Iterator[Callable[[Event], None]]:
    """Yield a function that sends the events of a run to a logger of `LOGGERS`, or to none: ""."""
    if not name or run is None:
        yield lambda event: None
        return
    library = load_logger(name)
    if name == "tensorboard":
        # Event files in the run's own directory: `tensorboard --logdir runs`.
        writer = library.SummaryWriter(str(run.path / name))
        finish = writer.close

        def log(values: dict[str, float], step: int) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
    else:
        # Trackio has the functions of Weights & Biases. `resume` continues the curves of a run that
        # was interrupted.
        settings = dict(run.settings)
        library.init(project="mlx_attn", name=run.name, config=settings, resume="allow")
        log, finish = library.log, library.finish

    def send(event: Event) -> None:
        if isinstance(event, Stepped | Evaluated):
            log(_curves(event), step=event.step)

    try:
        yield send
    finally:
        finish()


def _curves(event: Stepped | Evaluated) -> dict[str, float]:
    """Return the plottable numbers of an event, such as "train/loss" or "val/bits_per_byte"."""
    prefix = "train" if isinstance(event, Stepped) else "val"
    # "val_loss" of a validation becomes "val/loss".
    return {
        f"{prefix}/{key.removeprefix('val_')}": float(value)
        for key, value in as_record(event).items()
        if key not in _NOT_CURVES and isinstance(value, int | float)
    }
