"""`verify` fails if something is broken, and names it."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from mlx_attn.attention import cache
from mlx_attn.attention.attention import Attention
from mlx_attn.cli.verify import finding_lines, verdict
from mlx_attn.machine.device import device_name
from mlx_attn.training.step import TrainStep
from mlx_attn.verify import checks


def wrong_beyond_1024_keys(true, q, k, v, **named):
    y = true(q, k, v, **named)
    return y + 0.3 if q.shape[2] == 1 and k.shape[2] > 1024 else y


def stale_slot(true, self, arrays, in_order=False):
    kept, places = true(self, arrays, in_order)
    if self.offset <= 1024 or arrays[0].shape[2] > 1:
        return kept, places
    return tuple(mx.concatenate([a[:, :, :1], a[:, :, :-1]], axis=2) for a in kept), places


def twice_the_gradient_of_attention(true, *given, **named):
    y = true(*given, **named)
    return 2 * y - mx.stop_gradient(y)


def twice_all_gradients(true, *given):
    def differentiated(*inputs):
        loss, gradients = true(*given)(*inputs)
        return loss, tree_map(lambda array: 2 * array, gradients)

    return differentiated


def another_each_time(true, self, *given):
    return true(self, *given) * (1 + 1e-5 * next(CALLS))


CALLS = iter(range(1000))
on_linux = pytest.mark.skipif("sys.platform != 'linux'", reason="sums may be in any order")
SABOTAGES = [
    ("attention", mx.fast, "scaled_dot_product_attention", wrong_beyond_1024_keys),
    ("attention", mx.fast, "scaled_dot_product_attention", twice_the_gradient_of_attention),
    ("attention", Attention, "mix", lambda true, *given: true(*given) * 1.001),
    ("cached decoding", cache.KVCache, "extend", stale_slot),
    ("golden losses", checks.nn, "value_and_grad", twice_all_gradients),
    pytest.param("same bits twice", TrainStep, "_loss", another_each_time, marks=on_linux),
]


@pytest.mark.parametrize(("check", "place", "name", "changed"), SABOTAGES)
def test_what_is_broken_makes_it_fail_and_is_named(check, place, name, changed, monkeypatch):
    true = getattr(place, name)
    monkeypatch.setattr(place, name, lambda *given, **named: changed(true, *given, **named))
    (broken,) = (c for c in checks.CHECKS if c.__name__ == check.replace(" ", "_"))
    finding = checks.run(broken)
    assert (finding.is_right, finding.error) == (False, "")
    assert finding_lines(finding)[0].startswith(f"{device_name()}  WRONG  {check}")
    assert verdict([finding]).startswith(f"WRONG: 1 of 1 check failed, {check} first: ")


def test_a_kernel_that_cannot_run_is_one_line(monkeypatch):
    def raises(q, k, v, **named):
        if k.shape[2] > 1024:  # after shapes that are right
            raise RuntimeError("[metal::Device] Unable to load\n kernel steel_attention")
        return true(q, k, v, **named)

    true = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", raises)
    finding = checks.run(checks.attention)
    assert finding.error == "RuntimeError: [metal::Device] Unable to load kernel steel_attention"
    assert not finding.is_right


def test_a_check_that_compares_nothing_is_not_right(monkeypatch):
    monkeypatch.setattr(checks, "GOLDEN", {})
    assert not checks.run(checks.golden_losses).is_right


def rounded(array: mx.array) -> mx.array:
    """The nearest number of 10 bits after the point, as TF32."""
    kept = mx.array(0xFFFFFFFF << 13 & 0xFFFFFFFF, mx.uint32)
    return mx.bitwise_and(array.view(mx.uint32) + (1 << 12), kept).view(mx.float32)


@pytest.mark.parametrize(
    ("factor", "right"),
    [(rounded, True), (lambda a: a.astype(mx.bfloat16).astype(mx.float32), False)],
)
def test_products_may_round_as_tf32_and_not_worse(monkeypatch, factor, right):
    exact = mx.array.__matmul__
    monkeypatch.setattr(mx.array, "__matmul__", lambda a, b: exact(factor(a), factor(b)))
    finding = checks.run(checks.products)
    assert {comparison.share <= 1 for comparison in finding.comparisons} == {right}
    assert finding.comparisons[0].bound == (checks.TF32 if right else checks.FLOAT32)


def test_what_is_not_a_number_is_wrong():
    assert checks.compared("a case", mx.array([1.0, mx.nan]), np.ones(2), 1e9).share > 1


@pytest.mark.parametrize("check", [checks.attention, checks.golden_losses])
def test_the_path_of_a_gpu_is_right_on_this_processor_too(gpu_path, check):
    found = checks.run(check)
    assert found.is_right, finding_lines(found)
