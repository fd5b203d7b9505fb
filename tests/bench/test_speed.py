"""Things are timed in turns, and a measurement has the numbers of its model."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.bench import show, speed
from mlx_attn.bench.speed import MedianIQR, interleaved
from mlx_attn.errors import ConfigError

SIZES = {
    **{"vocab_size": 40, "context_length": 16, "emb_dim": 16, "n_heads": 2, "n_layers": 1},
    **{"steps": 1, "batch_size": 2},
}


def test_rounds_are_run_forth_and_back_so_that_a_machine_slowing_down_tells_no_difference(
    monkeypatch,
):
    log: list[str] = []
    monkeypatch.setattr(speed, "SHORTEST", 6.0)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: sum(range(len(log) + 1)))
    measured = interleaved({"a": lambda: log.append("a"), "b": lambda: log.append("b")}, 0.0)
    assert "".join(log) == "aabb" + 3 * "aaabbbbaaa"  # a turn lasts 6 s: 3 times 2 s, 2 times 4 s
    assert [round(times[0], 9) for times in measured.values()] == [9.5, 9.5]
    assert [len(times) for times in measured.values()] == [3, 3]


def test_every_kind_of_work_of_every_variant_is_measured(monkeypatch):
    monkeypatch.setattr(speed, "SHORTEST", 0.0)
    setups = speed.variant_setups("nano", SIZES, "standard,merged")
    measured = list(speed.bench(setups, list(speed.WORKLOADS), seconds=0.0))
    names = [(row.work, row.name) for row in measured]
    assert names == [(work, name) for work in speed.WORKLOADS for name in ("standard", "merged")]
    assert all(row.peak_memory > 4 * 40 * 16 for row in measured)  # the weights at least
    train, forward = measured[0], measured[2]
    assert [row.tokens for row in measured] == [2 * 16] * 4 + [8] * 2  # half the context is read
    for row in measured:
        assert row.tok_s.median * row.seconds.median == pytest.approx(row.tokens)
    assert train.operations > 2 * forward.operations > 0
    assert train.multiply_adds == 3 * forward.multiply_adds


def test_a_round_is_compared_with_the_first_model_s_round():
    work = speed.Workload(lambda: None, lambda: [mx.zeros(1) + 1], 12, 7)
    seconds, of_first = np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 2.0])
    found = speed.measurement("train", "a", work, 5, seconds, of_first)
    assert found.seconds == MedianIQR(4, low=3, high=5)
    assert (found.tok_s.median, found.over_first.median) == (3, 2)


def test_a_table_compares_each_model_with_the_first_per_multiply_add_too():
    def row(name: str, device: str, tok_s: float, over_first: float, work: int):
        speeds, ratio = MedianIQR(tok_s, 0.9 * tok_s, 1.1 * tok_s), MedianIQR(over_first, 0, 0)
        facts = {"tokens": 32, "multiply_adds": work, "peak_memory": 20_000, "operations": 5}
        return speed.Measurement("train", name, speeds, ratio, ratio, device=device, **facts)

    first, other, gpu = (
        row("a", "cpu", 900, 1, 2),
        row("b", "cpu", 450, 3, 4),
        row("a", "gpu", 2700, 0.3, 2),
    )
    assert [*show.speed_cells(other, first).values()] == [
        "450",
        "10%",
        "3.00",
        "1.50",
        "20 kB",
        "5",
    ]
    _, line = show.speed_lines([first, other, gpu])
    told = "training step, a: the gpu is 3.0 times as fast as the cpu: mlx-attn train --device gpu"
    assert line == told
    assert show.faster_device([first, row("a", "gpu", 910, 1, 2)]).endswith("are equally fast")


def test_a_case_that_fails_is_a_line_and_the_others_go_on(monkeypatch):
    forward = speed.WORKLOADS["forward"]

    def workload(config, training):
        if config.score == "merged":
            raise ValueError("[matmul] no kernel\nof this shape")
        return forward(config, training)

    monkeypatch.setitem(speed.WORKLOADS, "forward", workload)
    setups = speed.variant_setups("nano", SIZES, "merged,standard")
    lines: list[str] = []
    rows = [*speed.bench(setups, ["forward"], 0.0, ["cpu"], lines.append)]
    assert [row.name for row in rows] == ["standard"]
    assert lines == ["merged is left out of forward on the cpu: [matmul] no kernel of this shape"]


def test_more_than_the_machine_holds_is_refused():
    setups = speed.variant_setups("nano", {**SIZES, "emb_dim": 2**20}, "standard")
    with pytest.raises(ConfigError, match="fewer variants"):
        next(speed.bench(setups, ["train"], 0.0))


def peak(batch_size: int = 8, n_layers: int = 2) -> int:
    sizes = {"vocab_size": 64, "context_length": 64, "emb_dim": 64, "n_heads": 2}
    recipe = {"batch_size": batch_size, "n_layers": n_layers, "optimizer": "adamw"}
    setups = speed.variant_setups("nano", {**sizes, **recipe, "block": "modern"}, "standard")
    return speed.prepare("train", *setups["standard"])[1]


@pytest.mark.parametrize("axis", ["batch_size", "n_layers"])
def test_a_step_s_memory_grows_by_as_much_with_every_doubling(axis, no_lookahead):
    at = {size: peak(**{axis: size}) for size in (4, 8, 16)}
    assert at[16] - at[8] == pytest.approx(2 * (at[8] - at[4]), rel=0.25)
