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
from mlx_attn.text.corpus import Corpus
from mlx_attn.text.tasks import ABILITIES
from mlx_attn.training.events import Evaluated, Event, Stepped, as_record
from mlx_attn.training.loop import never, train
from mlx_attn.training.trainer import Trainer

SAMPLE_TOKENS = 120


def train_recorded(
    trainer: Trainer,
    should_stop: Callable[[], bool] = never,
    log: Callable[[Event], None] = lambda event: None,
) -> Iterator[Event]:
    """Train and yield events, each stored in the run directory, and a sample at each validation.

    See `loop.train`; `log` receives the events too, see `logging_to`.
    """
    run = trainer.run
    if not run:
        yield from train(trainer, should_stop)
        return
    # Events after the checkpoint will happen again; the reports must not have them twice.
    step, evaluated, tracked = trainer.progress.latest
    to_come = {"start": True, "step": bool(trainer.progress.losses)}
    to_come |= {"eval": evaluated != step, "track": tracked != step}
    run.forget_after(step, [event for event in to_come if to_come[event]])
    for event in train(trainer, should_stop):
        run.add_report(as_record(event))
        log(event)
        if isinstance(event, Evaluated):
            trainer.sample = write_sample(run, trainer)
            run.add_sample(event.step, trainer.sample)
        yield event


def write_sample(run: Run, trainer: Trainer) -> str:
    """Return a sample of the model's output: a text from nothing, or its answers to a task."""
    trainer.model.eval()
    if trainer.corpus.val.scored is not None:
        return _task_predictions(trainer.model, trainer.corpus)
    loaded = LoadedRun(run, trainer.model, trainer.corpus.tokenizer)
    # A fixed seed: samples of one training differ only by its weights.
    sampler = SamplerConfig(temp=0.8, seed=0)
    steps = loaded.stream("", sampler, SAMPLE_TOKENS, loaded.document_ends)
    return "".join(step.text for step in steps)


def _task_predictions(model: GPT, corpus: Corpus) -> str:
    """Return the first document of a task with the model's answers.

    A wrong answer is followed by the right one in brackets: `k3 v5[v1]`. The model must be in
    evaluation mode.
    """
    split, tokenizer = corpus.val, corpus.tokenizer
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
        library.init(project="mlx_attn", name=run.name, config=dict(run.settings), resume="allow")
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
