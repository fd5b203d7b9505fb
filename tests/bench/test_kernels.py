"""How many kernels a GPU starts for one step, of every variant and of the smaller presets.

Run as a script, it writes what it counts to tests/golden/kernels.json.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Before MLX, because it loads the BLAS.
import mlx_attn  # noqa: F401

# isort: split
import mlx.core as mx
import pytest

from mlx_attn.attention.config import VARIANTS
from mlx_attn.bench import kernels
from mlx_attn.bench.kernels import count_kernels, kernel_counts
from mlx_attn.bench.speed import variant_setups
from mlx_attn.errors import RunError
from mlx_attn.machine.device import on_gpu
from mlx_attn.machine.facts import versions

GOLDEN = Path(__file__).parents[1] / "golden" / "kernels.json"
PAGE = GOLDEN.parents[2] / "docs" / "performance.md"
WORKS = ("train", "forward", "decode")
PRESETS = ("tiny", "macbook", "speedrun", "shakespeare", "small")
COMPARED = ("standard", "merged", "no-out-proj")
ADVICE = (
    "the kernels that a GPU starts have changed; fewer are faster for a tiny model, more need a "
    "reason in the commit. If they are meant: python tests/bench/test_kernels.py"
)


def counted(preset: str, variants: Iterable[str] = COMPARED) -> dict[str, dict[str, int]]:
    """The kernels by name and kind of work."""
    setups, _ = variant_setups(preset, {}, [*variants])
    counts = {name: {} for name in setups}
    for row in kernel_counts(setups, WORKS):
        counts[row.name][row.work] = row.kernels
    return counts


@pytest.fixture
def recorded() -> dict[str, Any]:
    record = json.loads(GOLDEN.read_text(encoding="utf-8"))
    if record["mlx"] != versions()["mlx"]:
        pytest.skip(f"counted with mlx {record['mlx']}: other versions join otherwise")
    return record


@pytest.mark.usefixtures("compiling")
def test_every_variant_starts_as_many_kernels_as_recorded(recorded):
    assert counted("nano", VARIANTS) == recorded["variants"], ADVICE


@pytest.mark.parametrize(
    "preset", [*PRESETS[:2], *(pytest.param(p, marks=pytest.mark.slow) for p in PRESETS[2:])]
)
@pytest.mark.usefixtures("compiling")
def test_every_small_preset_starts_as_many_kernels_as_recorded(recorded, preset):
    assert counted(preset) == recorded["presets"][preset], ADVICE


def test_the_page_s_counts_are_those_recorded(recorded):
    page = PAGE.read_text(encoding="utf-8")
    for preset in PRESETS[:2]:
        for name, row in recorded["presets"][preset].items():
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


def test_a_norm_is_one_kernel_and_its_gradient_one_more_for_each_array():
    x, weight = evaluated(2, 3, 6), evaluated(6)
    with kernels._as_on_metal():
        assert kernels_of(mx.fast.rms_norm(x, weight, 1e-5)) == 1
        y, gradients = mx.vjp(lambda x, w: [mx.fast.rms_norm(x, w, 1e-5)], [x, weight], [x])
        assert kernels_of(*y, *gradients) == 3


@pytest.mark.parametrize(("width", "fused"), [(64, True), (32, False)])
def test_attention_is_one_kernel_where_metal_fuses_its_width(width, fused):
    q = evaluated(1, 2, 16, width)
    with kernels._as_on_metal():
        y = mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, mask="causal")
    assert (count_kernels(y) == {"mx.fast": 1}) == fused


@pytest.mark.usefixtures("compiling")
def test_counting_leaves_the_path_as_it_was():
    before = on_gpu(), mx.fast.rms_norm
    counted("nano", ["standard"])
    assert (on_gpu(), mx.fast.rms_norm) == before


def test_where_nothing_is_compiled_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(kernels, "_joins", lambda: False)
    with pytest.raises(RunError, match=r"install g\+\+"):
        counted("nano", ["standard"])


if __name__ == "__main__":
    record = {
        "mlx": versions()["mlx"],
        "variants": counted("nano", VARIANTS),
        "presets": {preset: counted(preset) for preset in PRESETS},
    }
    GOLDEN.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {GOLDEN}\n")
