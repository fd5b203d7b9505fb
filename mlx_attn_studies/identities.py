"""Check results of algebra and counting on one trained model, with the same numbers every time."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_attn.attention import analysis
from mlx_attn.attention.analysis import attention_cost
from mlx_attn.comparison.plan import corpus_of, floor_of
from mlx_attn.convert.measure import compare_logits
from mlx_attn.convert.model import convert
from mlx_attn.errors import find_row
from mlx_attn.files import write_text
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT, model_cost
from mlx_attn.records import package_table, read_record
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import stream_generate
from mlx_attn.text.corpus import Corpus
from mlx_attn.training import events
from mlx_attn.training.batches import window_losses
from mlx_attn.training.config import resolve
from mlx_attn.training.loop import train
from mlx_attn.training.tracking import drift
from mlx_attn.training.trainer import Trainer
from mlx_attn_studies.findings import FAILS, HOLDS

EXACT = 1e-5
"""Largest difference of logits, relative to the largest logit, that counts as zero in float32."""

SETTINGS: dict[str, Any] = {
    "preset": "nano",
    "n_heads": 4,
    "qkv_bias": True,
    "optimizer": "adamw",
    "steps": 60,
    "eval_every": 0,
    # Positions that are the same for any number of heads.
    "position": "learned",
}
"""Settings of the model for the checks; it has biases, which exact conversions must keep."""


@cache
def _trained() -> tuple[GPT, Corpus]:
    """Return a model trained until its weights have structure, and its text."""
    settings = resolve(SETTINGS)
    corpus = corpus_of(settings)
    return _finish(Trainer(settings, corpus)), corpus


def _converted(form: str) -> dict[str, float]:
    """Measure the changes after converting the trained model into another form."""
    greedy = SamplerConfig(temp=0.0)
    before, corpus = _trained()
    after = convert(before, form)
    old, new = model_cost(before.config), model_cost(after.config)
    one, other = (
        [step.token for step in stream_generate(model, corpus.tokenizer, "", greedy, 100)]
        for model in (before, after)
    )
    return {
        **_logits(after),
        "weights removed": float(old.parameters - new.parameters),
        "cache, times the original": new.cache_floats / old.cache_floats,
        "same greedy text": float(one == other),
    }


def _logits(after: GPT) -> dict[str, float]:
    """Return the distance of a model's logits from the trained model's."""
    before, corpus = _trained()
    found = compare_logits(before, after, corpus.val)
    difference, largest = found.logit_difference, found.largest_logit
    return {"largest logit difference": difference, "largest logit": largest}


def _same(numbers: Mapping[str, float]) -> bool:
    return numbers["largest logit difference"] <= EXACT * numbers["largest logit"]


def _bias_moved() -> dict[str, float]:
    """Move key biases by 1: the softmax ignores a constant added to all scores of a row."""
    before, corpus = _trained()
    moved = GPT(before.config, seed=None)
    moved.update(before.parameters())
    for block in moved.trf_blocks:
        block.att.W_key.bias = block.att.W_key.bias + 1.0
    moved.eval()
    tokens = mx.array(corpus.val.tokens[: before.config.context_length + 1].astype(np.uint32))
    loss = nn.value_and_grad(before, lambda windows: window_losses(before, windows).mean())
    blocks = loss(tokens[None])[1]["trf_blocks"]
    query, key = (
        np.linalg.norm([np.array(block["att"][name]["bias"]) for block in blocks])
        for name in ("W_query", "W_key")
    )
    logits = _logits(moved)
    return {
        "gradient of b_key, times that of b_query": float(key / query),
        "largest logit difference, b_key moved by 1": logits["largest logit difference"],
        **logits,
    }


def _other_heads() -> dict[str, float]:
    """Split the columns of the same weights into fewer heads, at the same scale."""
    before, corpus = _trained()
    T = before.config.context_length
    tokens = mx.array(corpus.val.tokens[: T + 1].astype(np.uint32))[None]
    found = {"loss, 4 heads": float(window_losses(before, tokens).mean())}
    for heads in (1, 2):
        same = replace(before.config, n_heads=heads, n_kv_heads=0, head_dim=0, value_dim=0)
        after = GPT(same, seed=None)
        after.update(before.parameters())
        after.eval()
        found[f"loss, read as {heads}"] = float(window_losses(after, tokens).mean())
        if heads == 1:
            found |= _logits(after)
    return found


def _costs() -> dict[str, float]:
    """Count the costs of GPT-2 small's attention with S instead of W_query and W_key."""
    config = GPTConfig(n_heads=12, emb_dim=768, n_layers=12, vocab_size=50257, context_length=256)
    separate, merged = (
        attention_cost(c.attention()) for c in (config, replace(config, score="merged"))
    )
    C, H, T = config.emb_dim, config.n_heads, config.context_length
    pair = 2 * C * C  # weights of W_query and W_key; S has H C^2
    products = T * C  # q_i k_j^T of all heads, per token
    extra = merged.multiply_adds - separate.multiply_adds - (H - 2) * C * C
    return {
        "heads": float(H),
        "query-key weights, times separate": 1 + (merged.parameters - separate.parameters) / pair,
        "score multiply-adds, times separate": 1 + extra / products,
        "attention weights, times separate": merged.parameters / separate.parameters,
        "attention multiply-adds, times separate": merged.multiply_adds / separate.multiply_adds,
        "cache, times separate": merged.cache_floats / separate.cache_floats,
    }


def _costs_without_query() -> dict[str, float]:
    """Count the costs of GPT-2 small's attention without W_query."""
    config = GPTConfig(n_heads=12, emb_dim=768, n_layers=12, vocab_size=50257, context_length=256)
    separate, without = (
        attention_cost(c.attention()) for c in (config, replace(config, score="no_query"))
    )
    return {
        "attention weights, times separate": without.parameters / separate.parameters,
        "attention multiply-adds, times separate": without.multiply_adds / separate.multiply_adds,
        "cache, times separate": without.cache_floats / separate.cache_floats,
    }


def _floor() -> dict[str, float]:
    """Return the lowest possible loss on the validation text, and the trained model's loss."""
    model, corpus = _trained()
    tokens = _windows(corpus, model.config.context_length, len(corpus.val.tokens))
    loss = float(window_losses(model, tokens).mean())
    return {"floor, nats per token": floor_of(corpus) or 0.0, "loss, nats per token": loss}


def _parting() -> dict[str, float]:
    """Train two forms of one untrained model with the same batches; measure how S_h diverges."""
    corpus = corpus_of(resolve(SETTINGS))
    pair = _trainers(corpus, SETTINGS["steps"])
    models = (pair[1].model, pair[0].model)
    found, parted = {_distance(0): _apart(*models, corpus)[0]}, dict[str, float]()
    # In parallel, so that both are measured after the same step.
    for step, _ in zip(*map(_steps, pair), strict=True):
        parted = dict(zip(_PARTED, _apart(*models, corpus), strict=True))
        distance, attention = (parted[name] for name in _PARTED[:2])
        found |= {_distance(step): distance, _attention(step): attention}
    return found | parted


def _steps(trainer: Trainer) -> Iterator[int]:
    """Train; yield each step at which it stops, including the last."""
    yield from (event.step for event in train(trainer) if isinstance(event, events.Stepped))


def _distance(step: int) -> str:
    """Return the name of the distance of S from the product after a step."""
    return f"distance of S, of its size, after {step}"


def _attention(step: int) -> str:
    """Return the name of the share of attention on different tokens after a step."""
    return f"attention given to other tokens, after {step}"


def parting_curves(numbers: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """Return the distances of S and attention by step, from `merged-learns-another-s`."""
    names = {"S": _distance, "attention": _attention}
    steps = range(SETTINGS["steps"] + 1)
    return {
        what: {step: numbers[name(step)] for step in steps if name(step) in numbers}
        for what, name in names.items()
    }


FORMS = ("separate", "merged")
_POINTS = 10  # of a course


def _trainer(corpus: Corpus, steps: int, **changes: Any) -> Trainer:
    """Return a trainer without biases, which S and its factors do not share."""
    mine = {"qkv_bias": False, "steps": steps, "log_every": max(1, steps // _POINTS)}
    return Trainer(resolve({**SETTINGS, **mine, **changes}), corpus)


def _trainers(corpus: Corpus, steps: int) -> tuple[Trainer, Trainer]:
    """Return trainers of one untrained model in both forms of `FORMS`, with the same batches."""
    separate, merged = _trainer(corpus, steps), _trainer(corpus, steps, variant="merged")
    merged.model.update(convert(separate.model, "merged").parameters())
    return separate, merged


def _finish(trainer: Trainer) -> GPT:
    """Train to the end and return the model."""
    for _ in train(trainer):
        pass
    trainer.model.eval()
    return trainer.model


_PARTED = (
    "distance of S, of its size, at the end",
    "attention given to other tokens, at the end",
    "effective rank of S, separate",
    "effective rank of S, merged",
    "loss, separate",
    "loss, merged",
)


def _apart(one: GPT, other: GPT, corpus: Corpus) -> tuple[float, ...]:
    """Return means over layers and heads of `tracking.drift`, and both models' ranks and losses."""
    tokens = _windows(corpus, one.config.context_length, 8)
    for model in (one, other):
        model.eval()
    found = drift(one, other, tokens)
    ranks, losses = (
        [measure(model) for model in (other, one)]
        for measure in (_rank, lambda model: float(window_losses(model, tokens).mean()))
    )
    for model in (one, other):
        model.train()
    return (float(np.mean(found["matrices"])), float(np.mean(found["maps"])), *ranks, *losses)


def _windows(corpus: Corpus, T: int, most: int) -> mx.array:
    """Return at most this many first windows of the validation text."""
    windows = min(most, len(corpus.val.tokens) // T)
    return mx.array(corpus.val.tokens[: windows * T].astype(np.uint32)).reshape(windows, T)


def _rank(model: GPT) -> float:
    """Return the mean effective rank of S_h."""
    found = analysis.spectra(analysis.qk_circuit(block.att) for block in model.trf_blocks)
    return float(found.effective_rank.mean())


LONGER = 5
"""Factor on the number of steps, for checks that take longer to learn."""


@cache
def _both_forms() -> dict[str, GPT]:
    """Train two forms of one untrained model with the same batches."""
    pair = _trainers(corpus_of(resolve(SETTINGS)), LONGER * SETTINGS["steps"])
    return {form: _finish(trainer) for form, trainer in zip(FORMS, pair, strict=True)}


def _cut(form: str, rank: int) -> str:
    """Return the name of a form's loss with every S_h cut to its largest singular values."""
    return f"loss, {form}, S cut to rank {rank}"


def truncation_curves(numbers: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """Return the loss in nats by form and rank of S_h, from `merged-has-a-flatter-spectrum`."""
    ranks = [2**power for power in range(16)]
    return {
        form: {rank: numbers[_cut(form, rank)] for rank in ranks if _cut(form, rank) in numbers}
        for form in FORMS
    }


def _truncated() -> dict[str, float]:
    """Replace S_h in both forms by the nearest matrix of each rank."""
    models, corpus = _both_forms(), corpus_of(resolve(SETTINGS))
    found = {f"effective rank of S, {form}": _rank(model) for form, model in models.items()}
    for form, model in models.items():
        widths = {"separate": model.config.head_dim, "merged": model.config.emb_dim}
        ranks = [2**power for power in range(widths[form].bit_length())]
        tokens = _windows(corpus, model.config.context_length, 32)
        for rank in ranks:
            whole = rank == model.config.head_dim and form == "separate"
            after = model if whole else convert(model, "separate", rank=rank)
            after.eval()
            found[_cut(form, rank)] = float(window_losses(after, tokens).mean())
    return found | {"head_dim": float(models["separate"].config.head_dim)}


def _decayed() -> dict[str, float]:
    """Train with and without weight decay of only W_query and W_key."""
    plain, corpus = _both_forms()["separate"], corpus_of(resolve(SETTINGS))
    steps, decay = LONGER * SETTINGS["steps"], {"weight_decay": 1.0, "decay": "query-key"}
    decayed = _finish(_trainer(corpus, steps, **decay))
    models = {"without decay": plain, "with decay": decayed}
    tokens = _windows(corpus, plain.config.context_length, 32)
    return {
        **{f"effective rank of S, {how}": _rank(model) for how, model in models.items()},
        **{f"loss, {how}": float(window_losses(m, tokens).mean()) for how, m in models.items()},
    }


def _symmetry() -> dict[str, float]:
    """Return the symmetry of S_h, the mean of a model's heads and the head nearest to symmetric."""
    numbers = {}
    for form, model in _both_forms().items():
        spectra = analysis.spectra(analysis.qk_circuit(block.att) for block in model.trf_blocks)
        numbers[f"symmetry of S, {form}"] = float(spectra.symmetry.mean())
        numbers[f"largest symmetry of S, {form}"] = float(spectra.symmetry.max())
    return numbers


_CHECKS: dict[str, tuple[Callable[[], dict[str, float]], Callable[[Mapping[str, float]], bool]]] = {
    "merging-is-exact": (lambda: _converted("merged"), _same),
    "merging-costs": (
        _costs,
        lambda n: (
            n["query-key weights, times separate"] == n["heads"] / 2
            and n["score multiply-adds, times separate"] == n["heads"]
        ),
    ),
    "key-bias-is-inert": (
        _bias_moved,
        lambda n: _same(n) and n["gradient of b_key, times that of b_query"] < 1e-4,
    ),
    "key-cache-is-enough": (
        lambda: _converted("slim"),
        lambda n: n["cache, times the original"] == 0.5 and n["same greedy text"] == 1,
    ),
    "weights-can-be-shrunk": (
        lambda: _converted("shrunk"),
        lambda n: _same(n) and n["weights removed"] > 0,
    ),
    "heads-are-not-a-layout": (_other_heads, lambda n: not _same(n)),
    "without-query-costs": (
        _costs_without_query,
        lambda n: (
            n["attention weights, times separate"] < 0.751  # out_proj has a bias
            and n["attention multiply-adds, times separate"] < 1
            and n["cache, times separate"] == 1
        ),
    ),
    "merged-learns-another-s": (
        _parting,
        lambda n: n[_distance(0)] <= EXACT and n["distance of S, of its size, at the end"] > 0.1,
    ),
    "merged-is-not-symmetric": (_symmetry, lambda n: n["largest symmetry of S, merged"] < 0.5),
    "merged-has-a-flatter-spectrum": (
        _truncated,
        lambda n: n["effective rank of S, merged"] > n["effective rank of S, separate"],
    ),
    "tales-have-a-floor": (
        _floor,
        lambda n: 0 < n["floor, nats per token"] < n["loss, nats per token"],
    ),
    "decay-lowers-the-rank": (
        _decayed,
        lambda n: n["effective rank of S, with decay"] < n["effective rank of S, without decay"],
    ),
}
"""For each identity: its measurement, and the condition under which it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A statement of algebra or counting, with its check."""

    statement: str
    source: str
    check: str


_TABLE = package_table("mlx_attn_studies", "identities")

IDENTITIES = {name: Identity(**row) for name, row in _TABLE.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The measurements of a check by name, and if they confirm the statement."""

    holds: bool
    numbers: Mapping[str, float] = field(default_factory=dict)


def check(name: str) -> Checked:
    """Check an identity; raise an error with the nearest name if it is unknown."""
    find_row(IDENTITIES, name, "identity")
    measure, holds = _CHECKS[name]
    numbers = measure()
    return Checked(numbers=numbers, holds=holds(numbers))


CHECKED = "identities.json"


def write_checked(checked: Mapping[str, Checked], folder: Path) -> None:
    """Save the measurements of the checks."""
    content = {name: asdict(one) for name, one in checked.items()}
    write_text(folder / CHECKED, json.dumps(content, indent=1) + "\n")


def read_checked(folder: Path) -> dict[str, Checked]:
    """Return the saved measurements of the checks, or an empty mapping."""
    file = folder / CHECKED
    return read_record(file, dict[str, Checked]) if file.exists() else {}


def checked_lines(name: str, checked: Checked) -> list[str]:
    """Return lines with the measurements of a check, and if they confirm the statement."""
    head = f"{name}: {HOLDS if checked.holds else FAILS}"
    return [head, *(f"  {what}: {number:.4g}" for what, number in checked.numbers.items())]
