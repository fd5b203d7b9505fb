"""Every check can fail: what is broken here is found, and the first check that fails names it."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.attention import attention, cache
from mlx_attn.machine import attention_kernels
from mlx_attn.model import gpt, init
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.training import batches, step
from mlx_attn.verify.checks import CHECKS, Finding, run, verify
from mlx_attn.verify.show import finding_lines, verdict

SDPA = "scaled_dot_product_attention"
CALLS = count(1)


# What the broken functions do, with the true function first.


def as_if_always_seed(true, self, name):
    return np.random.default_rng(self.seed)


def bfloat16_product(true, a, b):
    return true(a.astype(mx.bfloat16), b.astype(mx.bfloat16)).astype(mx.float32)


def garbage_at_1024_keys(true, q, k, v, **named):
    y = true(q, k, v, **named)
    return y + 0.3 if q.shape[2] == 1 and k.shape[2] >= 1024 and k.shape[1] < q.shape[1] else y


def gradient_doubled(true, *given):
    y = true(*given)
    return 2 * y - mx.stop_gradient(y)


def without_kernel(true, *given, **named):
    raise RuntimeError("[metal::Device] Unable to load\n kernel steel_attention")


def next_token_shown(true, queries, keys, window=0):
    return mx.where(keys == queries[:, None] + 1, 0.0, true(queries, keys, window))


def stale_slot(true, self, arrays, in_order=False):
    kept, places = true(self, arrays, in_order)
    if self.offset <= 1024 or arrays[0].shape[2] > 1:
        return kept, places
    last = min(self.offset, kept[0].shape[2]) - 1
    parts = (([a[:, :, :last], a[:, :, last - 1 : last], a[:, :, last + 1 :]]) for a in kept)
    return tuple(mx.concatenate(part, axis=2) for part in parts), places


def ring_turned(true, self, start, arrays):
    kept, places = true(self, start, arrays)
    return tuple(mx.roll(a, 1, 2) for a in kept), places


def unlike_before(true, self, *given):
    return true(self, *given) * (1 + next(CALLS) * 1e-6)


def without_residual(true, self, x, *given, **named):
    return true(self, x, *given, **named) - x


def least_likely(true, self, y, newest, state):
    return mx.argmin(y, -1, keepdims=True), state


Tampering = tuple[str, str, Any, str, Any]
"""The check that must find it first, words of the case that it names, and what is broken how."""

TAMPERINGS: list[Tampering] = [
    ("starting weights", "start book", init.NamedInit, "_random", as_if_always_seed),
    ("batches", "seed 7", batches.RandomWindows, "starts", lambda f, self, s, n: f(self, s, n + 1)),
    ("products", "float32 against float64", mx.array, "__matmul__", bfloat16_product),
    ("positions", "RoPE", attention, "rope", lambda f, y, first: f(y, first + 1)),
    ("positions", "ALiBi", attention, "alibi_bias", lambda f, slopes, *T: f(slopes, *T) + 1e-3),
    ("norms", "LayerNorm", gpt.LayerNorm, "__call__", lambda f, self, x: f(self, x) + x.mean()),
    ("activations", "gelu", gpt, "gelu", lambda f, x: x * mx.sigmoid(1.702 * x)),
    ("cross-entropy", "of", batches, "cross_entropy", lambda f, y, t: f(y.astype(mx.float16), t)),
    ("causality", "standard, in training", attention, "causal_mask", next_token_shown),
    ("attention", "window", attention, "causal_mask", lambda f, i, j, w=0: f(i, j, w and w + 1)),
    ("attention", "fused: q (4, 1, 32), k (1, 4100, 32)", mx.fast, SDPA, garbage_at_1024_keys),
    ("attention", "gradient of", attention_kernels, "fused_attention", gradient_doubled),
    ("attention", "written", attention, "attention_scores", lambda f, q, k, s: f(q, k[:, ::-1], s)),
    ("hooks", "forget", mx, "cumsum", lambda f, y, **named: f(y, **named) - y),
    ("random numbers", "normal", mx.random, "normal", lambda f, *a, **b: 0.99 * f(*a, **b)),
    ("random numbers", "uniform", mx.random, "uniform", lambda f, *a, **b: f(*a, **b) + 0.001),
    ("sampling", "2,000 draws", mx.random, "categorical", lambda f, y, **named: f(y, **named) - 1),
    ("sampling", "top-p", mx, "sort", lambda f, y, **named: -f(-y, **named)),
    ("golden models", "gradient", attention, "split_heads", lambda f, y, H: f(y, H)[:, ::-1]),
    ("golden models", "gradient", gpt.TransformerBlock, "__call__", without_residual),
    ("greedy sampling", "the book's block", Sampler, "draw", least_likely),
    ("compiling", "a chain", mx, "compile", lambda f, g, **_: lambda *given: g(*given) * 1.01),
    ("repeated training", "six steps with dropout", step.TrainStep, "_loss", unlike_before),
]
SLOW: list[Tampering] = [
    ("cached decoding", "a ring of 300", cache.RotatingKVCache, "_turn", ring_turned),
    ("cached decoding", "what a hook keeps: logits", cache.KVCache, "extend", stale_slot),
]
FUNCTIONS: list[Tampering] = [
    ("hooks", "", mx, "einsum", lambda f, way, a, b: f(way, a.T, b)),
    ("hooks", "", mx, "where", lambda f, condition, a, b: f(condition, b, a)),
    ("hooks", "", mx, "exp", lambda f, y: f(y) * 1.001),
]
"""Functions of MLX that hooks rest on, and other checks before them."""


def replace(patch: pytest.MonkeyPatch, place: Any, name: str, changed: Any) -> None:
    true = getattr(place, name)
    patch.setattr(place, name, lambda *given, **named: changed(true, *given, **named))


@pytest.fixture(autouse=True)
def masks_made_anew() -> Iterator[None]:
    """No test sees the masks of another one: they are made once and kept, a broken one too."""
    kept = [function for function in vars(attention).values() if hasattr(function, "cache_clear")]
    for function in kept:
        function.cache_clear()
    yield
    for function in kept:
        function.cache_clear()


def name_of(tampering: Tampering) -> str:
    return f"{tampering[0]}, {tampering[3]}"


@pytest.fixture
def broken(request, monkeypatch) -> tuple[str, str]:
    """Something is broken; the check that must find it, and words of the case that it names."""
    check, case, *tampering = request.param
    if check == "compiling":
        request.getfixturevalue("compiling")
    monkeypatch.setattr(attention, "text_mask", attention.text_mask.__wrapped__)  # not remembered
    replace(monkeypatch, *tampering)
    return check, case


@pytest.mark.parametrize("broken", [*TAMPERINGS, *FUNCTIONS], indirect=True, ids=name_of)
def test_what_is_broken_is_found_and_named(broken):
    name, case = broken
    (finding,) = verify([check for check in CHECKS if check.name == name])
    assert (finding.is_right, finding.error) == (False, "")
    assert case in "\n".join(finding_lines(finding))
    assert verdict([finding]).startswith(f"WRONG: 1 of 1 check failed, first {name} on")


@pytest.mark.slow
@pytest.mark.parametrize("broken", [*TAMPERINGS, *SLOW], indirect=True, ids=name_of)
def test_the_check_of_the_part_fails_before_those_of_what_it_is_part_of(broken):
    first = next(finding for finding in verify(CHECKS) if not finding.is_right)
    assert first.check.name == broken[0]
    assert broken[1] in "\n".join(finding_lines(first))


def test_every_check_has_a_tampering():
    assert {row[0] for row in [*TAMPERINGS, *SLOW]} == {check.name for check in CHECKS}


def check_named(name: str) -> Finding:
    return run(next(check for check in CHECKS if check.name == name), "cpu")


def test_a_kernel_that_cannot_run_is_one_line(monkeypatch):
    replace(monkeypatch, mx.fast, SDPA, without_kernel)
    finding = check_named("attention")
    message = "RuntimeError: [metal::Device] Unable to load kernel steel_attention"
    assert finding.error == message
    assert verdict([finding]).endswith(message)


def test_a_check_that_compares_nothing_is_not_right(monkeypatch):
    monkeypatch.setattr("mlx_attn.verify.models.GOLDEN", {})
    assert not check_named("golden models").is_right
