"""Every check can fail: what is broken here is found, and the first check that fails names it."""

from collections.abc import Callable, Iterator
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

Patch = pytest.MonkeyPatch
CALLS = count(1)


def replace(place: Any, name: str, changed: Callable[..., Any]) -> Callable[[Patch], None]:
    """A tampering: the function calls `changed` with the true function and its arguments."""

    def tamper(patch: Patch) -> None:
        true = getattr(place, name)
        patch.setattr(place, name, lambda *given, **named: changed(true, *given, **named))

    return tamper


def garbage_at_1024_keys(true, q, k, v, **named):
    y = true(q, k, v, **named)
    return y + 0.3 if q.shape[2] == 1 and k.shape[2] >= 1024 and k.shape[1] < q.shape[1] else y


def gradient_doubled(true, *given):
    y = true(*given)
    return 2 * y - mx.stop_gradient(y)


def without_kernel(true, *given, **named):
    raise RuntimeError("[metal::Device] Unable to load\n kernel steel_attention")


def next_token_shown(true, queries, keys, window=0):
    mask = true(queries, keys, window)
    return mx.where(keys == queries[:, None] + 1, 0.0, mask)


def groups_swapped(true, q, k, scale):
    return true(q, k[:, ::-1], scale)


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


def least_likely(true, self, logits, newest, state):
    draws = "keys" in state
    return true(self, logits, newest, state) if draws else (mx.argmin(logits, -1, True), state)


def unlike_before(true, self, *given):
    return true(self, *given) * (1 + next(CALLS) * 1e-6)


def compiled_otherwise(true, function, **named):
    return lambda *given: function(*given) * 1.01


def without_residual(true, self, x, *given, **named):
    return true(self, x, *given, **named) - x


def bfloat16_product(true, a, b):
    return true(a.astype(mx.bfloat16), b.astype(mx.bfloat16)).astype(mx.float32)


TAMPERINGS: dict[str, tuple[str, str, Callable[[Patch], None]]] = {
    "another stream of random numbers": (
        "starting weights",
        "start book, seed 7",
        replace(init.NamedInit, "_random", lambda _, self, name: np.random.default_rng(self.seed)),
    ),
    "another order of batches": (
        "batches",
        "four steps of seed 7",
        replace(
            batches.RandomWindows, "starts", lambda true, self, seed, n: true(self, seed, n + 1)
        ),
    ),
    "products in bfloat16": (
        "products",
        "float32 against float64",
        replace(mx.array, "__matmul__", bfloat16_product),
    ),
    "another base of RoPE": (
        "positions",
        "RoPE",
        lambda patch: patch.setattr(attention, "ROPE_BASE", 20_000.0),
    ),
    "ALiBi's distances from 1": (
        "positions",
        "ALiBi",
        replace(attention, "alibi_bias", lambda true, slopes, *T: true(slopes, *T) - slopes[0]),
    ),
    "a norm that is not centred": (
        "norms",
        "LayerNorm",
        replace(gpt.LayerNorm, "__call__", lambda true, self, x: true(self, x) + x.mean()),
    ),
    "another GELU": (
        "activations",
        "gelu",
        replace(gpt, "gelu", lambda true, x: x * mx.sigmoid(1.702 * x)),
    ),
    "a loss in float16": (
        "cross-entropy",
        "vocabulary of",
        replace(batches, "cross_entropy", lambda true, y, t: true(y.astype(mx.float16), t)),
    ),
    "a mask that shows the next token": (
        "causality",
        "standard, in training",
        replace(attention, "causal_mask", next_token_shown),
    ),
    "a window one too wide": (
        "causality",
        "weights outside of the mask, window 5",
        replace(attention, "causal_mask", lambda true, i, j, w=0: true(i, j, w and w + 1)),
    ),
    "heads split in reverse": (
        "order of heads",
        "4 heads",
        replace(attention, "split_heads", lambda true, y, heads: true(y, heads)[:, ::-1]),
    ),
    "a kernel that is wrong from 1,024 keys on": (
        "attention",
        "fused: 4 heads of 32, 2 of keys, 1 queries, 1100 keys",
        replace(mx.fast, "scaled_dot_product_attention", garbage_at_1024_keys),
    ),
    "a gradient of twice the size": (
        "attention",
        "fused, gradient of",
        replace(attention_kernels, "fused_attention", gradient_doubled),
    ),
    "key heads that serve other queries": (
        "attention",
        "written out",
        replace(attention, "attention_scores", groups_swapped),
    ),
    "sums that begin one too late": (
        "hooks",
        "logits forget",
        replace(mx, "cumsum", lambda true, y, **named: true(y, **named) - y),
    ),
    "random numbers that lie too near to 0": (
        "random numbers",
        "normal",
        replace(mx.random, "normal", lambda true, *given, **named: 0.99 * true(*given, **named)),
    ),
    "a draw that takes the token before": (
        "sampling",
        "2,000 draws, temperature 1",
        replace(mx.random, "categorical", lambda true, y, **named: true(y, **named) - 1),
    ),
    "a block without its residual stream": (
        "golden models",
        "gradient: trf_blocks.",
        replace(gpt.TransformerBlock, "__call__", without_residual),
    ),
    "a slot of the cache that is stale beyond 1,024": (
        "cached decoding",
        "slots of",
        replace(cache.KVCache, "extend", stale_slot),
    ),
    "a ring that is turned too far": (
        "cached decoding",
        "a ring of 300",
        replace(cache.RotatingKVCache, "_turn", ring_turned),
    ),
    "a greedy sampler that takes the least likely token": (
        "greedy sampling",
        "the book's block",
        replace(Sampler, "draw", least_likely),
    ),
    "a compiler that changes what it compiles": (
        "compiling",
        "a chain of operations",
        replace(mx, "compile", compiled_otherwise),
    ),
    "a training that is not the same twice": (
        "repeated training",
        "five steps with dropout",
        replace(step.TrainStep, "_loss", unlike_before),
    ),
}
"""What is broken; the check that must find it first, words of the case that it names, and how."""


FUNCTIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "categorical": (mx.random, "sampling", lambda true, y, **named: true(y, **named) - 1),
    "sort": (mx, "sampling", lambda true, y, **named: -true(-y, **named)),
    "cumsum": (mx, "hooks", lambda true, y, **named: true(y, **named)[..., ::-1]),
    "einsum": (mx, "hooks", lambda true, way, a, b: true(way, a.T, b)),
    "where": (mx, "hooks", lambda true, condition, a, b: true(condition, b, a)),
    "exp": (mx, "hooks", lambda true, y: true(y) * 1.001),
    "normal": (mx.random, "random numbers", lambda true, *a, **named: 1.01 * true(*a, **named)),
    "uniform": (mx.random, "random numbers", lambda true, *a, **named: true(*a, **named) + 0.001),
}
"""Functions of MLX that sampling, hooks and starts rest on: where, who notices, and the fault."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_function_of_mlx_is_noticed(monkeypatch, name):
    place, check, wrong = FUNCTIONS[name]
    replace(place, name, wrong)(monkeypatch)
    finding = check_named(check)
    assert (finding.is_right, finding.error) == (False, "")


@pytest.fixture(autouse=True)
def masks_made_anew() -> Iterator[None]:
    """No test sees the masks of another one: they are made once and kept, a broken one too."""
    kept = [function for function in vars(attention).values() if hasattr(function, "cache_clear")]
    for function in kept:
        function.cache_clear()
    yield
    for function in kept:
        function.cache_clear()


LONG = ("a slot of the cache that is stale beyond 1,024", "a ring that is turned too far")
"""Those that take seconds to be found; others that stand for the same checks do not."""


@pytest.fixture(
    params=[pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in TAMPERINGS]
)
def broken(request, monkeypatch) -> tuple[str, str]:
    """Something is broken; the check that must find it, and words of the case that it names."""
    check, case, tamper = TAMPERINGS[request.param]
    if check == "compiling":
        request.getfixturevalue("compiling")
    monkeypatch.setattr(attention, "text_mask", attention.text_mask.__wrapped__)  # not remembered
    tamper(monkeypatch)
    return check, case


def test_what_is_broken_is_found_and_named(broken):
    name, case = broken
    (found,) = verify([check for check in CHECKS if check.name == name])
    assert (found.is_right, found.error) == (False, "")
    assert case in "\n".join(finding_lines(found))
    assert verdict([found]).startswith(f"WRONG: 1 of 1 check failed, first {name} on")


@pytest.mark.slow
def test_the_check_of_the_part_fails_before_those_of_what_it_is_part_of(broken):
    assert next(f.check.name for f in verify(CHECKS) if not f.is_right) == broken[0]


def test_every_check_has_a_tampering():
    assert {check for check, _, _ in TAMPERINGS.values()} == {check.name for check in CHECKS}


def test_a_kernel_that_cannot_run_is_one_line(monkeypatch):
    replace(mx.fast, "scaled_dot_product_attention", without_kernel)(monkeypatch)
    found = check_named("attention")
    message = "RuntimeError: [metal::Device] Unable to load kernel steel_attention"
    assert (found.check.name, found.error) == ("attention", message)
    assert verdict([found]).endswith(message)


def check_named(name: str) -> Finding:
    return run(next(check for check in CHECKS if check.name == name), "cpu")


def test_a_check_that_compares_nothing_is_not_right(monkeypatch):
    monkeypatch.setattr("mlx_attn.verify.models.GOLDEN", {})
    assert not check_named("golden models").is_right
