import gc

import mlx.core as mx
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.errors import ConfigError
from mlx_attn.machine.facts import machine_memory, usable_memory
from mlx_attn.model.config import GPTConfig
from mlx_attn.training.trainer import check_memory, least_memory

TINY = GPTConfig(vocab_size=11, context_length=4, emb_dim=8, n_heads=2, n_layers=2, tied_head=True)


def test_the_machine_s_memory_is_known():
    assert machine_memory() > 2**29
    assert 0 < usable_memory() <= machine_memory()


def test_a_limit_of_the_shell_counts(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (10**6, 10**6))
    with pytest.raises(ConfigError, match=r"there are 0\.0 GB"):
        check_memory(GPTConfig(), 64)


def test_the_bound_is_below_what_a_step_takes(trainer):
    training = trainer(batch_size=64, n_layers=3)
    mx.reset_peak_memory()
    mx.eval(training.launch_step(), training.model.parameters())
    assert least_memory(training.model.config, 64) < mx.get_peak_memory()


def test_what_fits_is_not_refused():
    check_memory(TINY, 12)


@pytest.mark.parametrize(
    ("sizes", "batch_size"),
    [({}, 10**12), ({"n_layers": 4000, "emb_dim": 2**16}, 1), ({"context_length": 10**6}, 1)],
)
def test_what_cannot_fit_is_refused_before_anything_is_allocated(sizes, batch_size):
    config = GPTConfig(n_heads=2, **sizes)
    with pytest.raises(ConfigError, match=r"needs more than .* GB and there are .* GB"):
        check_memory(config, batch_size)


@pytest.fixture
def trained(trainer, no_lookahead):
    """The most memory that two steps of a model of eight layers take, and its weights then."""

    def train(**settings):
        gc.collect()
        mx.clear_cache()
        others = mx.get_active_memory()
        mx.reset_peak_memory()
        training = trainer(n_layers=8, batch_size=32, **settings)
        for _ in range(2):
            mx.eval(*training.launch_step(), *training.step.state)
        return mx.get_peak_memory() - others, named_arrays(training.model)

    return train


@pytest.mark.parametrize("compile", ["off", "on"])
def test_blocks_computed_again_take_less_memory_and_give_the_same_bits(trained, compile):
    whole, weights = trained(compile=compile)
    less, same = trained(compile=compile, checkpoint_blocks=True)
    assert less < 0.4 * whole
    assert all(mx.array_equal(weights[name], same[name]) for name in weights)


def test_their_bound_is_lower_and_below_what_a_step_takes(trained, trainer):
    config = trainer(n_layers=8).model.config
    bound = least_memory(config, 32, checkpoint_blocks=True)
    assert bound < min(least_memory(config, 32), trained(checkpoint_blocks=True)[0])


def test_a_block_that_drops_numbers_is_not_computed_twice(trainer):
    with pytest.raises(ConfigError, match=r"drop_rate=0\.1 would drop other numbers each time"):
        trainer(drop_rate=0.1, checkpoint_blocks=True)


def test_a_block_that_reads_more_than_x_is_not_computed_twice(trainer):
    with pytest.raises(ConfigError, match="checkpoint_blocks passes x alone between blocks"):
        trainer(variant="value-residual", checkpoint_blocks=True)
