"""Speed and memory of several models, each doing several kinds of work, measured in turns.

A round runs every model in one order and then in the opposite one, A B C C B A, which cancels a
machine that slows down evenly during the round. Ratios are formed within a round and only then
summarised. Texts are random tokens.
"""

import gc
import io
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from jaxtyping import Float

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import text_mask
from mlx_attn.attention.catalog import VARIANTS, find_variant
from mlx_attn.cost import model_cost
from mlx_attn.errors import ConfigError
from mlx_attn.machine import blas
from mlx_attn.machine.advice import advice_about
from mlx_attn.machine.device import device_name, on_device
from mlx_attn.machine.facts import usable_memory
from mlx_attn.machine.streams import keep_buffers, parallel_map, single_stream, split_among_cores
from mlx_attn.model.config import GPTConfig, find_preset
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, TokenStep, greedy_tokens
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.training import batches, trainer
from mlx_attn.training.config import TrainConfig, resolve
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.training.step import TrainStep

Name = TypeVar("Name")
Timed = Callable[[], object]
"""Does the work once, and waits until it is done."""
Rounds = Float[np.ndarray, " rounds"]
"""Seconds for doing a work once, by round; those of one measurement may be divided."""
Setup = tuple[GPTConfig, TrainConfig]
"""A model, and how it is trained; its batch size is also used for a forward pass."""

SHORTEST = 0.02
"""Seconds that one turn lasts at least: shorter work is repeated."""
_TEXT_TOKENS = 100_000
PROMPT_TOKENS = 16
NEW_TOKENS = 256
"""Tokens that decoding adds, or fewer if the context ends before."""


@dataclass(frozen=True, slots=True)
class MedianIQR:
    """A median and its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: Rounds) -> "MedianIQR":
        """Return the median and the quartiles of at least one number."""
        return cls(*np.percentile(numbers, (50, 25, 75)).tolist())


def interleaved(works: Mapping[Name, Timed], seconds: float) -> dict[Name, Rounds]:
    """Return each work's seconds by round, after as many rounds, at least 3, as fit into `seconds`.

    The time of a round is the mean of its two turns. Each work is run twice beforehand: the first
    run may compile or allocate, and the second shows how often a short one is repeated in a turn.
    """
    repeats: dict[Name, int] = {}
    for name, work in works.items():
        work()
        repeats[name] = max(1, math.ceil(SHORTEST / _timed(work, 1)))
    turns: dict[Name, list[float]] = {name: [] for name in works}
    began, n = time.perf_counter(), 0
    # Another round begins only if it is expected to end in time.
    while n < 3 or (time.perf_counter() - began) * (n + 1) / n < seconds:
        for name in (*works, *reversed(list(works))):
            turns[name].append(_timed(works[name], repeats[name]))
        n += 1
    # [rounds, 2] -> [rounds]
    return {name: np.reshape(times, (-1, 2)).mean(axis=1) for name, times in turns.items()}


def _timed(work: Timed, repeats: int) -> float:
    """Return the seconds of one run."""
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - began) / repeats


@dataclass(frozen=True, slots=True)
class Workload:
    """Something to time."""

    run: Timed
    # The arrays of one training step, one pass or one new token, not evaluated yet.
    graph: Callable[[], list[mx.array]]
    tokens: int  # tokens that it reads or writes
    multiply_adds: int  # per token at full context, gradients included


def _training_step(config: GPTConfig, training: TrainConfig) -> Workload:
    """Return one step of the trainer: forward, backward, clipping and the optimizer."""
    B, T = training.batch_size, config.context_length
    step = train_step(config, training)
    starts = mx.random.randint(0, _TEXT_TOKENS - T - 1, (B,))
    mx.eval(starts)

    def graph() -> list[mx.array]:
        made = step(mx.zeros((B,), mx.int64))
        return [*made, *named_arrays([step.model.state, step.optimizer.state]).values()]

    return Workload(
        lambda: mx.eval(step(starts), step.state),
        single_stream()(graph),
        B * T,
        # Each product has two more in the gradients, one of each operand.
        3 * model_cost(config).multiply_adds,
    )


def train_step(config: GPTConfig, training: TrainConfig) -> TrainStep:
    """Return the trainer's step on a new model and a random text."""
    model = GPT(config)
    optimizer = GroupedOptimizer(model, training)
    optimizer.schedule(1e-3)
    tokens = np.array(random_tokens(config, _TEXT_TOKENS))
    objective = batches.Objective(tokens, config.context_length)
    step = TrainStep(optimizer, objective, training)
    mx.eval(step.state)
    return step


def _forward_pass(config: GPTConfig, training: TrainConfig) -> Workload:
    """Return the losses of one batch, as validation computes them."""
    B, T = training.batch_size, config.context_length
    model = eval_model(config)
    windows = random_tokens(config, B * (T + 1)).reshape(B, T + 1)
    shards = split_among_cores(windows)
    mx.eval(windows, shards)
    return Workload(
        lambda: mx.eval(parallel_map(lambda shard: batches.window_losses(model, shard), shards)),
        lambda: [batches.window_losses(model, windows)],
        B * T,
        model_cost(config).multiply_adds,
    )


def decoding(config: GPTConfig, training: TrainConfig) -> Workload:
    """Return one text, token by token, with the cache: the likeliest token each time."""
    model = eval_model(config)
    step = TokenStep(model)
    n_prompt, new = decoded_lengths(config)
    prompt = [i % config.vocab_size for i in range(n_prompt)]

    def run() -> None:
        blas.use_threads(blas.preload().threads)
        greedy_tokens(step, prompt, new)
        # The token after the last one is still being computed.
        mx.synchronize()

    def graph() -> list[mx.array]:
        state, token = DecodingState(step), mx.array([[0]], mx.uint32)
        mx.eval(state.read(token))
        following = state.following(token, Sampler(SamplerConfig(temp=0.0)))
        return [following, *(array for cache in state.caches for array in cache.arrays)]

    return Workload(run, graph, new, model_cost(config).multiply_adds)


def decoded_lengths(config: GPTConfig) -> tuple[int, int]:
    """Return the number of tokens of the prompt, and of new ones."""
    prompt = min(PROMPT_TOKENS, config.context_length // 2)
    return prompt, min(NEW_TOKENS, config.context_length - prompt)


def random_tokens(config: GPTConfig, count: int) -> mx.array:
    """Return a text of random tokens."""
    return mx.random.randint(0, config.vocab_size, (count,)).astype(mx.uint32)


def eval_model(config: GPTConfig) -> GPT:
    """Return a new model in evaluation mode."""
    model = GPT(config)
    model.eval()
    mx.eval(model.parameters())
    return model


WORKLOADS: dict[str, Callable[[GPTConfig, TrainConfig], Workload]] = {
    "train": _training_step,
    "forward": _forward_pass,
    "decode": decoding,
}
"""The kinds of work by name."""

_OPERATION = re.compile(r'label ="([^"]+)", shape=rectangle')


def exported(*outputs: mx.array) -> str:
    """Return the graph of arrays that are not evaluated yet, in the language of Graphviz."""
    mx.export_to_dot(text := io.StringIO(), *outputs)
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One kind of work of one model."""

    work: str  # train, forward or decode
    name: str
    tok_s: MedianIQR
    seconds: MedianIQR  # seconds for doing the work once
    over_first: MedianIQR  # its time divided by the first model's
    tokens: int  # tokens that it reads or writes at once
    multiply_adds: int  # per token at full context, gradients included
    peak_memory: int  # the most bytes that its arrays had at a time, weights included
    operations: int  # operations in the graph of one step, as written: compiling joins some
    device: str


def bench(
    setups: Mapping[str, Setup],
    works: Sequence[str],
    seconds: float,
    devices: Sequence[str] = (),
    failed: Callable[[str], None] = lambda line: None,
) -> Iterator[Measurement]:
    """Measure models in turns for about `seconds`; yield each kind of work after measuring it.

    Each model is measured on each of the devices, by default on the one that computes. What cannot
    be computed is left out, and `failed` is called with a line about it.
    """
    devices = devices or [device_name()]
    check_memory(setups, len(devices))
    with on_device(devices[-1]):
        keep_buffers()
    for kind in works:
        prepared: dict[tuple[str, str], tuple[Workload, int]] = {}
        for device in devices:
            with on_device(device):
                for name, setup in setups.items():
                    try:
                        prepared[name, device] = prepare(kind, *setup)
                    except (ValueError, RuntimeError, ConfigError) as error:
                        reason = advice_about(error) or " ".join(str(error).split())
                        failed(f"{name} is left out of {kind} on the {device}: {reason}")
        if not prepared:
            continue
        runs = {key: on_device(key[1])(work.run) for key, (work, _) in prepared.items()}
        times = interleaved(runs, seconds / len(works))
        first = next(iter(times.values()))
        for (name, device), (work, peak) in prepared.items():
            with on_device(device):
                row = measurement(kind, name, work, peak, times[name, device], first)
            yield row


def measurement(
    kind: str, name: str, work: Workload, peak: int, times: Rounds, first: Rounds
) -> Measurement:
    """Return the result of timing one model's work on the device that computes by default."""
    return Measurement(
        work=kind,
        name=name,
        tok_s=MedianIQR.of(work.tokens / times),
        seconds=MedianIQR.of(times),
        over_first=MedianIQR.of(times / first),
        tokens=work.tokens,
        multiply_adds=work.multiply_adds,
        peak_memory=peak,
        operations=len(_OPERATION.findall(exported(*work.graph()))),
        device=device_name(),
    )


def prepare(kind: str, config: GPTConfig, training: TrainConfig) -> tuple[Workload, int]:
    """Return a work, done twice, and the most bytes of arrays that the second time took."""
    # What is freed during the measurement would be missing from the difference: garbage, and the
    # masks of earlier models, which give way to this one's.
    text_mask.cache_clear()
    gc.collect()
    before = mx.get_active_memory()
    work = WORKLOADS[kind](config, training)
    work.run()
    mx.reset_peak_memory()
    work.run()
    return work, mx.get_peak_memory() - before


def check_memory(setups: Mapping[str, Setup], copies: int = 1) -> None:
    """Refuse models that do not fit into memory together, in this many copies."""
    needed = copies * sum(
        trainer.least_memory(config, t.batch_size) for config, t in setups.values()
    )
    usable = usable_memory()
    if needed > usable:
        raise ConfigError(
            f"{copies * len(setups)} models side by side need more than {needed / 1e9:,.1f} GB "
            f"and there are {usable / 1e9:,.1f} GB: name fewer variants or smaller sizes"
        )


def variant_setups(
    preset: str,
    settings: Mapping[str, Any],
    variants: str,
    failed: Callable[[str], None] = lambda line: None,
) -> dict[str, Setup]:
    """Return variants, names between commas or "all", at a preset's sizes with these settings.

    `failed` is called with a line about each that these sizes do not allow.
    """
    vocab_size = settings.get("vocab_size", find_preset(preset).vocab_size)
    sizes = {"preset": preset, **settings}
    # One batch is measured, of as many windows as one pass of the model reads.
    training = replace(resolve(sizes).training, accumulate=1)
    setups: dict[str, Setup] = {}
    refused: dict[str, str] = {}
    for variant in map(find_variant, VARIANTS if variants == "all" else variants.split(",")):
        try:
            asked = resolve({**sizes, "variant": variant.name})
            setups[variant.name] = asked.model_config(vocab_size), training
        except ConfigError as error:
            refused[variant.name] = str(error)
    if not setups:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ConfigError(f"no variant is left to measure: {reasons}")
    for name, reason in refused.items():
        failed(f"{name} is left out: {reason}")
    return setups
