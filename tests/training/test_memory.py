import gc
from collections.abc import Callable

import mlx.core as mx
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.errors import ConfigError
from mlx_attn.machine import device
from mlx_attn.machine.facts import machine_memory, usable_memory
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.training.trainer import check_memory, least_memory

TINY = GPTConfig(vocab_size=11, context_length=4, emb_dim=8, n_heads=2, n_layers=2, tied_head=True)


def test_the_machine_s_memory_is_known():
    assert machine_memory() > 2**29
    assert 0 < usable_memory() <= machine_memory()


def test_a_limit_of_the_shell_counts(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (10**6, 10**6))
    with pytest.raises(ConfigError, match=r"there are 0\.0 GB"):
        check_memory(GPTConfig(), 64)


@pytest.fixture
def metal(monkeypatch) -> Callable[[int], None]:
    """Has the default device look like a GPU whose recommended working set is so many bytes."""

    def recommend(size: int) -> None:
        monkeypatch.setattr(device, "device_name", lambda: "gpu")
        facts = {"device_name": "a GPU", "max_recommended_working_set_size": size}
        monkeypatch.setattr(mx, "device_info", lambda *_: facts)

    return recommend


def test_a_gpu_s_recommended_working_set_counts_unless_less_memory_is_there(metal, monkeypatch):
    there = usable_memory()
    metal(10**15)
    assert usable_memory() == there
    metal(10**6)
    assert usable_memory() == 10**6
    with pytest.raises(ConfigError, match=r"there are 0\.0 GB"):
        check_memory(GPTConfig(), 64)
    monkeypatch.setattr(device, "device_name", lambda: "cpu")
    assert usable_memory() == there


def weights_bytes(**settings) -> int:
    """The bytes of attention weights that a GPU's training counts: 512 tokens, 2 layers."""
    sizes = {"context_length": 512, "emb_dim": 128, "n_layers": 2}
    config = config_from({**sizes, "n_heads": 2, "position": "rope", **settings})
    rest = {"n_layers": config.n_layers, "hidden": config.hidden_dim, "C": config.emb_dim}
    feed_forward = 2 * rest["n_layers"] * rest["C"] * rest["hidden"]
    tokens = 512 * (2 * config.vocab_size + rest["n_layers"] * (6 * rest["C"] + 2 * rest["hidden"]))
    others = 4 * (3 * (feed_forward + config.vocab_size * rest["C"]) + tokens) + 8
    return least_memory(config, 1) - others


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"n_heads": 8}, 2 * 8 * 512 * 512),
        ({"n_heads": 4}, 2 * 4 * 512 * 512),
        ({"n_heads": 2}, 0),
        ({"drop_rate": 0.1}, 2 * 2 * 512 * 512),
        ({"position": "alibi"}, 2 * 2 * 512 * 512),
        ({"mixing": "sink"}, 2 * 2 * 512 * 512),
        ({"logits": "temperature"}, 2 * 2 * 512 * 512),
        ({"window": 64}, 2 * 2 * 512 * 64),
        ({"window": 64, "global_every": 2}, 0),  # the bound must hold for every layer
    ],
    ids=[
        *("heads of 16", "heads of 32", "heads that a kernel fuses", "dropout", "an array mask"),
        *("a mixing", "a hook", "the keys in a window", "some layers are fused"),
    ],
)
def test_weights_of_heads_that_no_kernel_fuses_count_on_a_gpu(gpu_path, settings, weights):
    assert weights_bytes(**settings) == 4 * weights


def test_the_bound_is_below_what_a_step_takes(trainer):
    training = trainer(batch_size=64, n_layers=3)
    mx.reset_peak_memory()
    mx.eval(training.launch_step(), training.model.parameters())
    assert least_memory(training.model.config, 64) < mx.get_peak_memory()


@pytest.mark.parametrize(
    ("sizes", "batch_size"),
    [({}, 10**12), ({"n_layers": 4000, "emb_dim": 2**16}, 1), ({"context_length": 10**6}, 1)],
)
def test_what_cannot_fit_is_refused_before_anything_is_allocated(sizes, batch_size):
    check_memory(TINY, 12)
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drop_rate": 0.1}, r"drop_rate=0\.1 would drop different numbers each time"),
        ({"variant": "value-residual"}, "checkpoint_blocks passes only x between blocks"),
    ],
)
def test_a_block_that_another_forward_pass_would_change_is_not_computed_twice(
    trainer, settings, message
):
    with pytest.raises(ConfigError, match=message):
        trainer(**settings, checkpoint_blocks=True)
