"""One training: its model, optimizer, schedule, text, run and checkpoint, and its memory.

The system kills a process that asks for too much memory without a message. A lower bound, checked
before anything is allocated, catches settings with a zero too many.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Integer
from mlx.utils import tree_unflatten

from mlx_attn.arrays import Arrays, check_weights, count_parameters, load_arrays, named_arrays
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Maps
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.machine.advice import translate_mlx_errors
from mlx_attn.machine.facts import usable_memory
from mlx_attn.machine.operations import fuses
from mlx_attn.machine.streams import compiling_pays, keep_buffers
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.records import Count, Seconds, check_agrees, parse_record
from mlx_attn.run_directory import Run
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.batches import Objective, batch_sampler
from mlx_attn.training.config import RESUMABLE, Settings
from mlx_attn.training.evaluation import Evaluation, Evaluator
from mlx_attn.training.events import Tracked
from mlx_attn.training.optimizers import GroupedOptimizer, learning_rate_factor
from mlx_attn.training.step import TrainStep

FLOAT_BYTES = 4
EXPLODED = 10  # abort if the loss exceeds this multiple of ln(vocab_size), the loss of guessing
_STEEP = 100  # if `scale` exceeds its default by this factor, it gets the blame for divergence


def _keys_of_weights(layer: AttentionConfig, T: int) -> int:
    """Return for how many keys training must store a query's attention weights, at least.

    A processor computes long texts in blocks, and stores little more than earlier keys, half of
    all. Only a GPU has fused kernels, which store none. They cannot run hooks, dropout, an array as
    mask, or some widths.
    """
    maps, has_array = Maps(layer), layer.position == "alibi" or 0 < layer.window < T
    widths = (layer.head_dim, layer.key_width)
    if layer.drop_rate or maps.has_hooks or has_array or not any(fuses(w, T, 1) for w in widths):
        return min(layer.window or T, T // 2)
    return 0


def least_memory(model: GPTConfig, batch_size: int, accumulate: int = 1) -> int:
    """Return a lower bound of the bytes that a training needs."""
    # W_1 and W_2 of every layer; norms, biases and attention weights would only raise the bound.
    feed_forward = 2 * model.n_layers * model.emb_dim * model.hidden_dim
    weights = feed_forward + model.vocab_size * model.emb_dim
    T = model.context_length
    keys = min(_keys_of_weights(kind, T) for kind in model.kinds())
    # Per token and layer: the residual stream, the hidden layer, and H attention weights per key.
    of_layer = 6 * model.emb_dim + 2 * model.hidden_dim + model.n_heads * keys
    # Weight, gradient and optimizer state; logits and their gradient.
    numbers = 3 * weights + batch_size * T * (2 * model.vocab_size + model.n_layers * of_layer)
    return FLOAT_BYTES * numbers + 8 * batch_size * accumulate


def check_memory(model: GPTConfig, batch_size: int, accumulate: int = 1) -> None:
    """Raise a `ConfigError` if the training needs more memory than is available."""
    needed = least_memory(model, batch_size, accumulate)
    available = usable_memory()
    if needed > available:
        raise ConfigError(
            f"this training needs more than {needed / 1e9:,.1f} GB and there are "
            f"{available / 1e9:,.1f} GB: use fewer or narrower layers, a shorter context, a "
            f"smaller batch_size with accumulate"
        )


@dataclass(slots=True)
class Progress:
    """Steps, seconds and losses of a training so far."""

    step: Count = 0  # steps done
    seconds: Seconds = 0.0  # of training so far, validations included
    timed_steps: Count = 0  # those whose time is known: all but the first after each start
    training_seconds: Seconds = 0.0  # what these took, without validations
    evaluated_step: Count = 0  # of the latest validation
    tracked_step: int = -1  # of the latest record of the heads
    best: Evaluation | None = None  # the lowest loss so far; None before the first validation
    peak_memory: Count = 0  # bytes
    losses: list[float] = field(default_factory=list)  # of steps since the last report of one
    grad_norm: float = 0.0  # of the latest of these
    first_loss: float = 0.0  # of the first step

    @property
    def latest(self) -> tuple[int, int, int]:
        """Return the steps of the latest weights, validation, and record of the heads."""
        return self.step, self.evaluated_step, self.tracked_step


class Diverged(RunError):
    """A loss, a gradient or a weight is not finite."""


class Trainer:
    """One training of a recipe on a text.

    Args:
        settings: The recipe.
        corpus: The text.
        draw: Whether to draw weights: a plan needs none, and resuming loads them.
    """

    def __init__(self, settings: Settings, corpus: Corpus, draw: bool = True):
        self.settings = settings
        self.config = config = settings.training
        self.corpus = corpus
        # Where weights and checkpoints are saved; with None, nothing is.
        self.run: Run | None = None
        self.sample = ""  # of the model's text, at the latest validation of a kept run
        # Measures the heads, if that is wanted; see `probe.tracking.track_heads`.
        self.track: Callable[[], Tracked] | None = None
        # Steps of the state in the latest checkpoint; see `Progress.latest`.
        self.saved: tuple[int, int, int] | None = None
        self.progress = Progress()
        # Only now: the size of the vocabulary is the tokenizer's.
        model_config = settings.model_config(corpus.tokenizer.vocab_size)
        T = model_config.context_length
        self.sampler = batch_sampler(corpus.train, T, config)
        self.evaluator = Evaluator(corpus.val, T)
        # A step uses `accumulate` batches; 0 without a bound in steps or epochs.
        by_epochs = math.ceil(config.epochs * self.sampler.steps_per_epoch / config.accumulate)
        self.steps = min(filter(None, (config.steps, by_epochs)), default=0)
        self.tokens_per_step = self.sampler.batch_size * config.accumulate * T
        # Everything that can fail is checked before the weights take memory.
        check_memory(model_config, self.sampler.batch_size, config.accumulate)
        keep_buffers()
        self.model = GPT(model_config, seed=config.seed if draw else None)
        # The model that it started from, in any form; the drift of its heads is measured from it.
        self.origin: GPT | None = None
        self.optimizer = GroupedOptimizer(self.model, config)
        objective = Objective(corpus.train.tokens, T, corpus.train.scored)
        self.step = TrainStep(self.optimizer, objective, config)

    def choose_compiling(self) -> None:
        """Compile a new run if that is slow here and pays; its record keeps the choice."""
        # Three products for each weight and token.
        work = 3 * self.steps * self.tokens_per_step * count_parameters(self.model)
        minutes = 0 if self.steps else self.config.minutes
        if self.config.compile == "auto" and compiling_pays(work, minutes):
            self.config = replace(self.config, compile="on")
            self.settings = replace(self.settings, training=self.config)
            self.optimizer = GroupedOptimizer(self.model, self.config)
            self.step = TrainStep(self.optimizer, self.step.objective, self.config)

    @translate_mlx_errors()
    def read_weights(self) -> None:
        """Take over the model's weights and compute them now: no other thread that trains could."""
        self.optimizer.read()
        mx.eval(self.step.state)

    @property
    def tokens(self) -> int:
        """Return how many tokens it has been trained on."""
        return self.progress.step * self.tokens_per_step

    def start_from(self, source: GPT) -> None:
        """Load the weights of a model of the same form, and track the drift from it."""
        self.model.load_weights(list(named_arrays(source).items()))
        self.optimizer.read()
        self.origin = source

    def resume(self, run: Run) -> None:
        """Resume from a run's checkpoint; call this before the first step.

        Raises:
            RunError: The file is missing, damaged, or has another configuration or recipe.
        """
        path = run.checkpoint
        arrays, facts = load_arrays(path)
        if "progress" not in facts:
            raise RunError(f"{path}: only weights, no checkpoint: there is nothing to resume from")
        progress = parse_record(facts["progress"], Progress, f"{path}, progress")
        weights = {n.removeprefix("model."): a for n, a in arrays.items() if n.startswith("model.")}
        check_weights(path, self.model, weights)
        # Names, shapes and types identify the optimizer: Muon's stacks differ from AdamW's vectors.
        saved, expected = (
            {name: (array.shape, array.dtype) for name, array in each.items()}
            for each in (arrays, self.state())
        )
        if saved != expected:
            raise RunError(
                f"{path}: saved by another optimizer; resume with the run's own settings"
            )
        check_agrees(facts.get("recipe", "{}"), self.recipe(), str(path))
        # Everything is checked before the first array changes.
        tree: Any = tree_unflatten(list(arrays.items()))
        self.model.update(tree["model"])
        # Update the dictionaries in place: compiled steps hold references to them.
        for state, values in zip(self.optimizer.state, tree["optimizer"], strict=True):
            state.update(values)
        self.optimizer.read()
        self.run, self.progress, self.saved = run, progress, progress.latest

    def state(self) -> Arrays:
        """Return the arrays of a checkpoint: weights "model.*", optimizer states "optimizer.N.*".

        N is the number of the group. Random numbers follow from the seed and the step.
        """
        return named_arrays({"model": self.model.parameters(), "optimizer": self.optimizer.state})

    def recipe(self) -> dict[str, Any]:
        """Return everything that resuming must not change: model, text, and most settings."""
        training = asdict(self.config).items()
        fixed = {key: value for key, value in training if key not in RESUMABLE}
        return {**self.model.config.as_dict(), **fixed, "text": self.corpus.digest}

    def launch_step(self) -> tuple[mx.array, mx.array]:
        """Start computing one step, and return its loss and gradient norm lazily."""
        self.optimizer.schedule(self._factor(self.progress.step))
        # Only (seed, step) counts, so a resumed training draws the dropout of one without a break.
        seeds = np.random.SeedSequence([self.config.seed, self.progress.step, 0])
        high, low = seeds.generate_state(2).tolist()
        mx.random.seed((high << 32) | low)
        if not self.model.training:  # a reader of the events may have evaluated it
            self.model.train()
        result = self.step(self.starts())
        # Starts computing and returns; meanwhile the host prepares the next step.
        mx.async_eval(*result, *self.step.state)
        self.progress.step += 1
        return result

    def starts(self) -> Integer[mx.array, " B"]:
        """Return the starts of the windows for the next step, by micro-batch."""
        # [accumulate * B]
        return self.sampler.starts(self.config.seed, self.progress.step, self.config.accumulate)

    def _factor(self, done: int) -> float:
        return learning_rate_factor(self.config, done, self.steps, self.progress.seconds)

    def learning_rate(self, step: int) -> float:
        """Return AdamW's learning rate at a step, counted from 1."""
        # The n-th step is taken with n - 1 steps done.
        return self.config.lr * self._factor(max(0, step - 1))

    def save(self) -> None:
        """Write a checkpoint unless this state has one; before any validation, also the weights.

        A step may have two: an interruption saves before the validation.
        """
        if self.saved == self.progress.latest:
            return
        # A checkpoint of a diverged model would replace the last good one.
        if self.progress.losses:
            self.check_sane("loss", self.progress.losses[-1])
        if self.run:
            if not all(mx.isfinite(array).all() for array in named_arrays(self.model).values()):
                raise self.divergence("a weight is not finite", self.progress.step)
            progress, recipe = json.dumps(asdict(self.progress)), json.dumps(self.recipe())
            facts = {"progress": progress, "recipe": recipe}
            self.run.save(self.run.checkpoint, self.state(), facts)
            # Before the first validation these are the run's only weights.
            if not self.run.weights.exists():
                self.run.save_model(self.model)
        self.saved = self.progress.latest

    def check_sane(self, what: str, loss: float) -> None:
        """Raise `Diverged` if a model is far worse than an untrained one: it must not be saved."""
        # A start far from uniform may have a larger loss than guessing without diverging.
        worst = EXPLODED * max(math.log(self.model.config.vocab_size), self.progress.first_loss)
        if not loss <= worst:  # nor is NaN
            more = f", more than {EXPLODED} times that of guessing," if math.isfinite(loss) else ""
            raise self.divergence(f"{what} {loss:.3g}{more}", self.progress.step)

    def divergence(self, what: str, step: int) -> Diverged:
        """Return the error for a training that has diverged, with the most likely way out."""
        scale, usual = self.model.config.scale, self.model.config.head_dim**-0.5
        decay = self.config.lr * self.config.weight_decay
        advice = "try a smaller --lr, or --clip 1"
        if scale > _STEEP * usual:
            advice = f"try a --scale nearer to 1 / sqrt(head_dim), {usual:.2g}, than {scale:.2g}"
        elif decay >= 1:  # which turns weights over
            advice = f"try a smaller --weight-decay, which times --lr is {decay:.2g} now"
        saved = "; no checkpoint was saved yet" if self.run else ""
        if self.run and self.saved:
            saved = f"; the last good checkpoint, of step {self.saved[0]}, is {self.run.checkpoint}"
        rate = self.learning_rate(step)
        return Diverged(f"{what} at step {step}, learning rate {rate:.3g}: {advice}{saved}")
