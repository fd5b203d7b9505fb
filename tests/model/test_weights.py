"""Files of arrays; tests/model/test_gpt.py pins the names of a model's weights."""

import mlx.core as mx

from mlx_attn.arrays import count_parameters, load_arrays, save_arrays
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT

ARRAYS = {
    "a.weight": mx.arange(6, dtype=mx.float32).reshape(2, 3),
    "b": mx.array([1.5, -2.0], dtype=mx.bfloat16),
    "step": mx.array(7, dtype=mx.uint64),
}


def test_only_what_is_trained_is_counted():
    config = GPTConfig(vocab_size=7, context_length=4, emb_dim=8, n_heads=2, n_layers=1)
    model, frozen = GPT(config), GPT(config)
    frozen.trf_blocks[0].ff.layers[0].freeze()
    assert count_parameters(model) - count_parameters(frozen) == 32 * 8 + 32


def test_arrays_of_every_type_and_the_facts_come_back(tmp_path):
    save_arrays(tmp_path / "model.safetensors", ARRAYS, {"note": "seven"})
    arrays, facts = load_arrays(tmp_path / "model.safetensors")
    assert facts == {"format": "mlx", "note": "seven"}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert mx.array_equal(arrays[name], array), name
