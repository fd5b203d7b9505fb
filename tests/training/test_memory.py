import pytest

from mlx_attn.arrays import count_parameters
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.trainer import FLOAT_BYTES, check_memory, least_memory, machine_memory

TINY = GPTConfig(vocab_size=11, context_length=4, emb_dim=8, n_heads=2, n_layers=2, tied_head=True)


def test_the_bound_is_below_what_weights_gradient_and_a_state_take():
    logits = 2 * 3 * TINY.context_length * TINY.vocab_size
    weights = 3 * count_parameters(GPT(TINY))
    assert 0 < least_memory(TINY, batch_size=3) <= FLOAT_BYTES * (weights + logits)


def test_the_machine_s_memory_is_known():
    assert machine_memory() > 2**29


def test_what_fits_is_not_refused():
    check_memory(TINY, 12)


@pytest.mark.parametrize(
    ("sizes", "batch_size"), [({}, 10**12), ({"n_layers": 10**9}, 1), ({"emb_dim": 2 * 10**7}, 1)]
)
def test_what_cannot_fit_is_refused_before_anything_is_allocated(sizes, batch_size):
    config = GPTConfig(n_heads=2, **sizes)
    with pytest.raises(ConfigError, match=r"needs more than .* GB and the machine has .* GB"):
        check_memory(config, batch_size)
