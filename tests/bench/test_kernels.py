"""How many kernels a GPU starts for one step, of every variant and of the smaller presets.

Run as a script, it writes what it counts to tests/golden/kernels.json.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Before MLX, because it loads the BLAS.
import mlx_attn  # noqa: F401

# isort: split
import mlx.core as mx
import mlx.nn as nn
import pytest

from mlx_attn.attention.config import VARIANTS
from mlx_attn.bench import kernels
from mlx_attn.bench.kernels import count_kernels, kernel_counts
from mlx_attn.bench.speed import Setup, variant_setups
from mlx_attn.errors import RunError
from mlx_attn.machine.device import on_gpu
from mlx_attn.machine.facts import versions
from mlx_attn.model.config import find_preset
from mlx_attn.training.config import resolve

GOLDEN = Path(__file__).parents[1] / "golden" / "kernels.json"
WORKS = ("train", "forward", "decode")
PRESETS = ("tiny", "macbook", "speedrun", "shakespeare", "small")
FIRST = PRESETS[:2]
"""Those whose counts the ordinary suite holds."""
COMPARED = ("standard", "merged", "no-out-proj")

Counts = dict[str, dict[str, int]]
"""By name and kind of work."""


def setups(preset: str, variants: list[str]) -> dict[str, Setup]:
    settings = resolve({"preset": preset})
    model = {**settings.model, "vocab_size": find_preset(preset).vocab_size}
    return variant_setups(model, settings.training, variants)[0]


def counted(chosen: Mapping[str, Setup]) -> Counts:
    found: Counts = {name: {} for name in chosen}
    for row in kernel_counts(chosen, WORKS):
        found[row.name][row.work] = row.kernels
    return found


def recorded() -> dict[str, Any]:
    found = json.loads(GOLDEN.read_text(encoding="utf-8"))
    if found["mlx"] != versions()["mlx"]:
        pytest.skip(f"counted with mlx {found['mlx']}: other versions join otherwise")
    return found


def changes(now: Counts, before: Counts) -> list[str]:
    """Lines such as "merged train 247 -> 250"."""
    return [
        f"{name} {work} {before.get(name, {}).get(work)} -> {kernels}"
        for name, works in now.items()
        for work, kernels in works.items()
        if before.get(name, {}).get(work) != kernels
    ]


ADVICE = (
    "the kernels that a GPU starts have changed; fewer are faster for a tiny model, more need a "
    "reason in the commit. If they are meant: python tests/bench/test_kernels.py"
)


@pytest.mark.usefixtures("compiling")
def test_every_variant_starts_as_many_kernels_as_recorded():
    before, now = recorded()["variants"], counted(setups("nano", list(VARIANTS)))
    assert not changes(now, before), ADVICE
    assert list(before) == list(now), ADVICE


@pytest.mark.parametrize(
    "preset", [p if p in FIRST else pytest.param(p, marks=pytest.mark.slow) for p in PRESETS]
)
@pytest.mark.usefixtures("compiling")
def test_every_small_preset_starts_as_many_kernels_as_recorded(preset):
    before = recorded()["presets"][preset]
    assert not changes(counted(setups(preset, list(COMPARED))), before), ADVICE


def test_the_page_s_counts_are_those_recorded():
    page = (GOLDEN.parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    found = recorded()["presets"]
    for preset in ("tiny", "macbook"):
        for name, row in found[preset].items():
            cells = " | ".join(str(row[work]) for work in WORKS)
            assert f"| `{preset}`, {name} | {cells} |" in page


# What is counted.


def kernels_of(*outputs: mx.array) -> int:
    return count_kernels(*outputs).total()


def evaluated(*shape: int) -> mx.array:
    x = mx.ones(shape)
    mx.eval(x)
    return x


@pytest.mark.usefixtures("compiling")
def test_a_chain_that_is_compiled_is_one_kernel():
    compiled: Any = mx.compile(lambda x: mx.exp(2 * x) + 1)
    assert kernels_of(compiled(evaluated(3))) == 1


def test_a_view_is_none_and_a_concatenation_one_for_each_array():
    x = evaluated(4, 6)
    assert kernels_of(x.T[1:].reshape(2, -1)[None]) == 0
    assert kernels_of(mx.concatenate([x, x, x])) == 3


@pytest.mark.parametrize(
    ("norm", "forward", "with_gradient"),
    [(nn.RMSNorm(6), 1, 3), (nn.LayerNorm(6, bias=False), 1, 3), (nn.LayerNorm(6), 1, 4)],
    ids=["rmsnorm", "layernorm without bias", "layernorm"],
)
def test_a_norm_is_one_kernel_and_its_gradient_one_more_for_each_weight(
    norm, forward, with_gradient
):
    x = evaluated(2, 3, 6)
    mx.eval(norm.parameters())
    with kernels._as_on_metal():
        assert kernels_of(norm(x)) == forward
        weights, pulled = norm.trainable_parameters(), evaluated(2, 3, 6)

        def outputs(x: mx.array, *arrays: mx.array) -> list[mx.array]:
            norm.update(dict(zip(weights, arrays, strict=True)))
            return [norm(x)]

        found = mx.vjp(outputs, [x, *weights.values()], [pulled])
        assert kernels_of(*found[0], *found[1]) == with_gradient


@pytest.mark.parametrize(("width", "fused"), [(64, True), (32, False)])
def test_attention_is_one_kernel_where_metal_fuses_its_width(width, fused):
    q = evaluated(1, 2, 16, width)
    with kernels._as_on_metal():
        y = mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, mask="causal")
    assert (count_kernels(y) == {"mx.fast": 1}) == fused


@pytest.mark.usefixtures("compiling")
def test_counting_leaves_the_path_as_it_was():
    before = on_gpu(), mx.fast.rms_norm
    counted(setups("nano", ["standard"]))
    assert (on_gpu(), mx.fast.rms_norm) == before


def test_where_nothing_is_compiled_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(kernels, "_joins", lambda: False)
    with pytest.raises(RunError, match=r"install g\+\+"):
        counted(setups("nano", ["standard"]))


if __name__ == "__main__":
    record = {
        "mlx": versions()["mlx"],
        "variants": counted(setups("nano", list(VARIANTS))),
        "presets": {preset: counted(setups(preset, list(COMPARED))) for preset in PRESETS},
    }
    GOLDEN.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {GOLDEN}\n")
