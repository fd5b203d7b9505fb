"""The entrance: several models, each doing several kinds of work, measured in turns."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from mlx_attn.attention.config import find_variant
from mlx_attn.bench.floors import PARTS, WORKS, Work, floors, shares
from mlx_attn.bench.timing import Spread, Timing, in_turns
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.trainer import keep_buffers, least_memory, machine_memory

SHARE_OF_PARTS = 0.4
"""How much of the time goes into where the time goes."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One kind of work of one model.

    Attributes:
        work: train, forward or decode.
        name: The variant.
        tok_s: Tokens per second.
        seconds: Seconds for doing the work once.
        over_floor: Its time divided by the floor, that of its matrix products alone.
        over_best: Its time divided by that of the faster way to compute those products.
        over_first: Its time divided by that of the first one measured beside it.
        tokens: Tokens that it reads or writes at once.
        multiply_adds: Those of its matrix products, per token.
        peak_memory: The most bytes that its arrays had at a time, weights included.
        operations: Operations in the graph of one step, as written: compiling joins some.
        shares: The share of each part in the time.
    """

    work: str
    name: str
    tok_s: Spread
    seconds: Spread
    over_floor: Spread
    over_best: Spread
    over_first: Spread
    tokens: int
    multiply_adds: int
    peak_memory: int
    operations: int
    shares: Mapping[str, float]


Setup = tuple[GPTConfig, TrainConfig]
"""A model, and how it is trained: its batch size is that of a forward pass too."""


def variant_setups(
    model: Mapping[str, Any], training: TrainConfig, variants: Sequence[str]
) -> tuple[dict[str, Setup], dict[str, str]]:
    """Variants at the sizes of a model, and why others cannot be."""
    setups: dict[str, Setup] = {}
    refused: dict[str, str] = {}
    for name in variants:
        variant = find_variant(name)
        try:
            setups[variant.name] = config_from({**model, **variant.maps}), training
        except ConfigError as error:
            refused[variant.name] = str(error)
    return setups, refused


def bench(
    setups: Mapping[str, Setup], works: Sequence[str], seconds: float
) -> Iterator[Measurement]:
    """Measure models beside each other; each kind of work is yielded when it has been measured.

    Args:
        setups: The models by name; times are compared with the first one's.
        works: Keys of `WORKS`.
        seconds: About how long all of it may take.

    Raises:
        ConfigError: The models do not fit into memory together.
    """
    _check_memory(setups)
    keep_buffers()
    for kind in works:
        yield from _side_by_side(kind, setups, seconds / len(works))


def _side_by_side(kind: str, setups: Mapping[str, Setup], seconds: float) -> Iterator[Measurement]:
    works, peaks = {}, {}
    for name, setup in setups.items():
        works[name], peaks[name] = prepared(kind, *setup)
    subjects = {(name, "whole work"): work.run for name, work in works.items()}
    for name, work in works.items():
        ways = floors(work.config, work.reading, work.backward, work.steps)
        subjects |= {(name, way): subject for way, subject in ways.items()}
    timings = in_turns(subjects, seconds * (1 - SHARE_OF_PARTS))
    first = timings[next(iter(setups)), "whole work"]
    each = seconds * SHARE_OF_PARTS / len(setups)
    for name, setup in setups.items():
        work, whole = works.pop(name), timings[name, "whole work"]
        found = shares(work, PARTS[kind](*setup), each)
        yield Measurement(
            kind,
            name,
            *_speeds(work, whole, _floors(timings, name), first),
            tokens=work.tokens,
            multiply_adds=work.multiply_adds,
            peak_memory=peaks[name],
            operations=work.operations().total(),
            shares=found,
        )


def _floors(timings: Mapping[tuple[str, str], Timing], name: str) -> tuple[Timing, Timing]:
    """The time of one model's matrix products, and that of the faster way to compute them."""
    ways = {way: t for (of, way), t in timings.items() if of == name and way != "whole work"}
    return ways["whole"], min(ways.values(), key=lambda timing: timing.spread.median)


def prepared(kind: str, config: GPTConfig, training: TrainConfig) -> tuple[Work, int]:
    """A work that has been done twice, and the most bytes of arrays that the second time took."""
    # What is no longer used would be freed some time later and be missing from the difference.
    gc.collect()
    before = mx.get_active_memory()
    work = WORKS[kind](config, training)
    work.run()
    mx.reset_peak_memory()
    work.run()
    return work, mx.get_peak_memory() - before


def _speeds(
    work: Work, whole: Timing, floors: tuple[Timing, Timing], first: Timing
) -> tuple[Spread, ...]:
    return (
        whole.spread.inverse(float(work.tokens)),
        whole.spread,
        *(whole.over(floor) for floor in floors),
        whole.over(first),
    )


def _check_memory(setups: Mapping[str, Setup]) -> None:
    needed = sum(least_memory(config, training.batch_size) for config, training in setups.values())
    if needed > machine_memory():
        raise ConfigError(
            f"{len(setups)} models side by side need more than {needed / 1e9:,.0f} GB and the "
            f"machine has {machine_memory() / 1e9:,.0f} GB: name fewer variants or smaller sizes"
        )


FACTORS = (0.5, 1, 2, 4)
AXES = {
    "context": "context_length",
    "width": "emb_dim",
    "layers": "n_layers",
    "batch": "batch_size",
}
"""What can grow, and the setting of each."""


def scaled(model: Mapping[str, Any], training: TrainConfig, axis: str) -> dict[str, Setup]:
    """The setups to measure, from the smallest to the largest.

    Args:
        model: Keys of `GPTConfig`; sizes that it leaves out follow the others.
        training: The recipe.
        axis: A key of `AXES`.
    """
    key = AXES[axis]
    base = training.batch_size if axis == "batch" else getattr(config_from(model), key)
    sizes = sorted({max(1, round(base * factor)) for factor in FACTORS})
    return {f"{axis} {size}": _setup(model, training, key, size) for size in sizes}


def _setup(model: Mapping[str, Any], training: TrainConfig, key: str, size: int) -> Setup:
    if key == "batch_size":
        return config_from(model), replace(training, batch_size=size)
    config: GPTConfig = config_from({**model, key: size})
    return config, training
