"""What a measurement says of a model."""

import pytest

from mlx_attn.bench.floors import WORKS
from mlx_attn.bench.speed import Measurement, bench, variant_setups
from mlx_attn.errors import ConfigError
from mlx_attn.training.config import TrainConfig

SIZES = {"vocab_size": 40, "context_length": 16, "emb_dim": 16, "n_heads": 2, "n_layers": 1}
RECIPE = TrainConfig(steps=1, batch_size=2)


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    """Two variants, all kinds of work, the fewest rounds."""
    setups, _ = variant_setups(SIZES, RECIPE, ["standard", "merged"])
    return list(bench(setups, list(WORKS), seconds=0.0))


def test_every_kind_of_work_of_every_variant_is_measured(measured):
    names = [(row.work, row.name) for row in measured]
    assert names == [(work, name) for work in WORKS for name in ("standard", "merged")]


def test_shares_of_the_time_add_up_to_one(measured):
    for row in measured:
        assert sum(row.shares.values()) == pytest.approx(1)


def test_a_training_step_has_an_optimizer_and_nothing_else_has(measured):
    assert {row.work for row in measured if "optimizer" in row.shares} == {"train"}


def test_speed_is_tokens_over_seconds(measured):
    assert measured[0].tok_s.median * measured[0].seconds.median == pytest.approx(2 * 16)


def test_the_first_is_compared_with_itself(measured):
    assert measured[0].over_first.median == 1


def test_memory_holds_at_least_the_weights(measured):
    for row in measured:
        assert row.peak_memory > 4 * 40 * 16, (row.work, row.name)


def test_training_has_more_operations_than_a_forward_pass(measured):
    train, forward = measured[0], measured[2]
    assert train.operations > 2 * forward.operations > 0


def test_sizes_that_a_variant_refuses_leave_it_out():
    setups, refused = variant_setups(
        {**SIZES, "value_dim": 4}, RECIPE, ["standard", "key-as-value"]
    )
    assert list(setups) == ["standard"]
    assert "value_dim=4" in refused["key-as-value"]


def test_more_than_the_machine_holds_is_refused():
    setups, _ = variant_setups({**SIZES, "emb_dim": 2**20}, RECIPE, ["standard"])
    with pytest.raises(ConfigError, match="fewer variants"):
        next(bench(setups, ["train"], 0.0))
