"""A forecast of a training's time and memory, from measurements before it begins.

Every block costs the same, so the time and the memory of each phase of a step are linear in the
number of layers. Models with two and with four layers, otherwise identical, train for a few steps
and validate on a few windows; the results are extrapolated to the model's depth. A model of at most
four layers, or whose layers follow a pattern of variants, is measured itself.

So is a batch, if a processor can read it in a second or so. Of a larger one some windows are
measured: each takes the same time, and the same memory beside that of weights and optimizer. If two
windows are too long for that, two shorter ones are measured in a model of two layers and a part of
the vocabulary, operations and weights are counted for the rest, and memory is not known.
"""

import gc
import time
from dataclasses import dataclass, replace
from math import ceil, inf

import mlx.core as mx
import numpy as np
from jaxtyping import Float
from mlx.utils import tree_map

from mlx_attn.arrays import count_parameters
from mlx_attn.machine.streams import compiles_step, cores, first_step_compiles, parts_take_less
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.text.characters import CharacterTokenizer
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.config import Settings
from mlx_attn.training.evaluation import EVALUATION_TOKENS
from mlx_attn.training.trainer import Trainer

_PARTS = 2  # the most micro-batches that are measured; their gradients add up
_DEPTHS = (2, 4)  # layers; both even, because two streams hold other memory at odd depths
_ENOUGH = (2.0, 0.8, 0.8)
"""Seconds after which no second, third and fourth step is timed, unless the first compiled."""
_WORK = 8e9  # the most multiply-adds of a forward pass to measure on a processor
_FEW_WINDOWS = 2.5  # times as many, so that two windows are read whole

_Measured = Float[np.ndarray, " numbers"]
"""Seconds of the gradients, of the optimizer and of a validation; bytes of weights and optimizer,
of what the gradients' peak adds, and of the optimizer's peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected time and memory of a training on this machine."""

    step_seconds: float  # time of one step
    validation_seconds: float  # time of one validation
    # Time of all remaining steps and validations, without samples, checkpoints and reports.
    seconds: float
    steps: int  # steps that remain, or that fit into the minutes
    validations: int  # validations during these steps
    peak_memory: int  # the most bytes of arrays at any time; 0 if it is not known


def forecast(trainer: Trainer) -> Forecast:
    """Measure the cost of the rest of a training; the trainer itself does not change.

    MLX's random state does change; a training seeds every step itself.
    """
    config = trainer.config
    gradients, update, validation_seconds, kept, added, peak = _measure(trainer).tolist()
    step_seconds = gradients * config.accumulate / min(config.accumulate, _PARTS) + update
    left = max(trainer.steps - trainer.progress.step, 0)
    # The minutes hold earlier sessions and all validations but the last, which always takes place.
    by_clock = max(config.minutes * 60 - trainer.progress.seconds, 0)
    share = validation_seconds / config.eval_every if config.eval_every else 0
    fit = ceil(by_clock / (step_seconds + share)) if config.minutes else left
    steps = min(left, fit) if trainer.steps else fit
    done, every = trainer.progress.step, config.eval_every
    on_the_way = ceil((done + steps) / every) - done // every if every else 1  # and at the end
    validations = on_the_way if steps else 0
    return Forecast(
        step_seconds=step_seconds,
        validation_seconds=validation_seconds,
        seconds=steps * step_seconds + validations * validation_seconds,
        steps=steps,
        validations=validations,
        peak_memory=round(max(kept + added, peak)),
    )


def _measure(trainer: Trainer) -> _Measured:
    """Measure a training of this model, or as much of it as takes little time."""
    settings, training, config = trainer.settings, trainer.config, trainer.model.config
    layers, T, B = config.n_layers, config.context_length, trainer.sampler.batch_size
    is_deep = layers > _DEPTHS[1] and not settings.model.get("pattern")
    few_layers, more_layers = _DEPTHS if is_deep else (layers, layers)
    cost, _ = _work_and_weights(replace(config, n_layers=more_layers))
    fits = int(_WORK / cost) if parts_take_less() else B * T  # tokens

    def measured(
        depth: int, windows: int, length: int = T, corpus: Corpus = trainer.corpus
    ) -> _Measured:
        parts = min(training.accumulate, _PARTS)
        recipe = replace(training, batch_size=windows, accumulate=parts)
        if not compiles_step(training.compile):
            recipe = replace(recipe, compile="off")  # g++ would take longer than all of it
        sizes = {**settings.model, "n_layers": depth, "context_length": length}
        part = replace(settings, model=sizes, training=recipe)
        return _measure_batch(part, corpus, min(EVALUATION_TOKENS, fits))

    def of_depth(depth: int) -> _Measured:
        if fits >= B * T or B <= 2:
            return measured(depth, B)
        some = max(windows, fits // T // cores() * cores())
        # Neither the optimizer nor a validation depends on the batch.
        return measured(depth, some) * [B / some, 1, 1, 1, B / some, 1]

    windows = min(B, 2)
    if windows * T > _FEW_WINDOWS * fits:
        # As large a share of the vocabulary as of the layers, so that all grows alike.
        vocab_size = ceil(config.vocab_size * few_layers / layers)
        corpus, length = _with_fewer_tokens(trainer.corpus, vocab_size), max(2, fits // windows)
        sizes = {"n_layers": few_layers, "context_length": length, "vocab_size": vocab_size}
        small = replace(config, **sizes)
        costs = _work_and_weights(config), _work_and_weights(small)
        work, weights = (a / b for a, b in zip(*costs, strict=True))
        found = measured(few_layers, windows, length, corpus)
        tokens = B * T / (windows * length)
        return found * [work * tokens, weights, work, 0, 0, 0]
    if not is_deep:
        return of_depth(layers)
    # Two points of each line: the slope is the cost of a layer, the rest does not depend on depth.
    few, more = of_depth(few_layers), of_depth(more_layers)
    slope = np.maximum(more - few, 0) / (more_layers - few_layers)
    return few + slope * (layers - few_layers)


def _with_fewer_tokens(corpus: Corpus, vocab_size: int) -> Corpus:
    """Return it in a smaller vocabulary: the weights of a large one take seconds to fill."""
    if vocab_size == corpus.tokenizer.vocab_size:  # which may be more than there are characters
        return corpus
    train, val = (
        replace(split, tokens=split.tokens % vocab_size) for split in (corpus.train, corpus.val)
    )
    tokenizer = CharacterTokenizer("".join(map(chr, range(vocab_size))))
    return replace(corpus, tokenizer=tokenizer, train=train, val=val)


def _work_and_weights(config: GPTConfig) -> tuple[int, int]:
    """Return about how many multiply-adds a token takes, and how many weights there are."""
    weights = count_parameters(GPT(config, seed=None))
    # Of the tables of tokens and positions, each weight of the head is multiplied.
    tables = (config.position == "learned") * config.context_length
    tables += (not config.tied_head) * config.vocab_size
    scores = 2 * config.n_layers * config.context_length
    return weights + (scores - tables) * config.emb_dim, weights


def _measure_batch(settings: Settings, corpus: Corpus, tokens: int) -> _Measured:
    """Measure steps of these settings, and a validation on about this many tokens."""
    # Buffers of an earlier model must not count as this one's.
    gc.collect()
    mx.clear_cache()
    others, compiles = mx.get_active_memory(), first_step_compiles(settings.training.compile)
    # Windows start anywhere: a task's documents would not fit into fewer tokens.
    corpus = replace(corpus, train=replace(corpus.train, document_starts=None))
    trainer = Trainer(settings, corpus, draw=False)
    # Weights of zero take as long as others in a step, and less to make.
    trainer.model.update(tree_map(mx.zeros_like, trainer.model.parameters()))
    trainer.read_weights()  # and the optimizer's state, as in every step but the first
    kept, peaks = mx.get_active_memory(), []
    seconds: list[tuple[float, float]] = []
    for enough in (inf, *_ENOUGH):
        if np.sum(seconds) >= enough and not compiles:
            break
        mx.reset_peak_memory()
        began = time.perf_counter()
        # The optimizer begins when all gradients are ready.
        loss, gradients = trainer.step.gradients(trainer.starts())
        mx.eval(loss, gradients)
        between = time.perf_counter()
        peaks.append(mx.get_peak_memory())
        mx.reset_peak_memory()
        mx.eval(trainer.step.update(gradients), trainer.step.state)
        seconds.append((between - began, time.perf_counter() - between))
        peaks.append(mx.get_peak_memory())
        del gradients
    # The median ignores a step that something else on the machine delayed; the first may compile.
    timed = np.median(seconds[1:] or seconds, axis=0)
    validation = _validation_seconds(trainer, tokens, compiles)
    return np.array([*timed, validation, kept - others, peaks[0] - kept, peaks[1] - others])


def _validation_seconds(trainer: Trainer, tokens: int, compiles: bool) -> float:
    """Return the seconds of a validation, of which a known fraction is timed."""
    evaluator, windows = trainer.evaluator, len(trainer.evaluator.windows)
    few = min(windows, ceil(tokens / evaluator.context_length))
    seconds: list[float] = []
    # The second is warm.
    while not seconds or (len(seconds) < 2 and (compiles or seconds[0] < _ENOUGH[-1])):
        began = time.perf_counter()
        evaluator.estimate(trainer.model, few)
        seconds.append(time.perf_counter() - began)
    return seconds[-1] * windows / few
