"""Attention against the numbers of other implementations."""

import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention, CausalAttention, MultiHeadAttention
from mlx_attn.attention.config import AttentionConfig

REFERENCE = np.load(Path(__file__).parents[1] / "golden" / "attention.npz")

CASES = {
    "causal": lambda: CausalAttention(12, 8, 10, 0.0),
    "causal_bias": lambda: CausalAttention(12, 8, 10, 0.0, qkv_bias=True),
    "multihead": lambda: MultiHeadAttention(24, 24, 10, 0.0, 3),
    "multihead_bias": lambda: MultiHeadAttention(24, 24, 10, 0.0, 4, qkv_bias=True),
    "multihead_rect": lambda: MultiHeadAttention(10, 24, 10, 0.0, 4),
    "multihead_no_out_proj": lambda: MultiHeadAttention(24, 24, 10, 0.0, 3, output="none"),
    "multihead_one_head_no_out_proj": lambda: MultiHeadAttention(24, 24, 10, 0.0, 1, output="none"),
    "merged_no_out_proj": lambda: MultiHeadAttention(
        24, 24, 10, 0.0, 3, score="merged", output="none"
    ),
    "merged_bias_no_out_proj": lambda: MultiHeadAttention(
        24, 24, 10, 0.0, 4, qkv_bias=True, score="merged", output="none"
    ),
}


def stacked(case: str, kind: str) -> dict[str, np.ndarray]:
    """The arrays of a case by our names: single heads stacked into one module."""
    parts: dict[str, list[np.ndarray]] = {}
    for key in sorted(REFERENCE.files):
        if key.startswith(f"{case}/{kind}/"):
            name = re.sub(r"heads\.\d+\.", "", key.split("/")[-1])
            parts.setdefault(name, []).append(REFERENCE[key])
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def with_weights(module: Attention, weights: dict[str, np.ndarray]) -> Attention:
    module.load_weights([(name, mx.array(array)) for name, array in weights.items()])
    return module


@pytest.mark.parametrize("case", sorted({key.split("/")[0] for key in REFERENCE.files}))
def test_output_and_gradients_are_the_reference_s(case):
    module = with_weights(CASES[case](), stacked(case, "w"))
    x, R = mx.array(REFERENCE[f"{case}/x"]), mx.array(REFERENCE[f"{case}/R"])

    def loss(parameters: dict, x: mx.array) -> mx.array:
        module.update(parameters)
        return (module(x) * R).sum()

    np.testing.assert_allclose(module(x), REFERENCE[f"{case}/out"], rtol=0, atol=1e-5)
    of_weights, of_x = mx.grad(loss, argnums=(0, 1))(module.parameters(), x)
    np.testing.assert_allclose(of_x, REFERENCE[f"{case}/gx"], rtol=0, atol=1e-5)
    gradients, expected = named_arrays(of_weights), stacked(case, "g")
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        # Up to 15, after about 80 sums in a row: 15 * 2**-23 * sqrt(80).
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=1.6e-5, err_msg=name)


def test_three_words_of_the_source_text():
    """The last of three words, without weights and scale: softmax(x x^T) x."""
    words = [[0.34, 0.22, 0.54], [0.53, 0.34, 0.98], [0.29, 0.54, 0.93]]
    config = AttentionConfig(
        d_in=3,
        d_out=3,
        context_length=3,
        score="no_query",
        value="identity",
        output="none",
        scale=1.0,
    )
    module = with_weights(Attention(config), {"W_key.weight": np.eye(3)})
    # "shiny" is the middle word and sees all three, so it is asked last.
    order = [0, 2, 1]
    output = module(mx.array([[words[i] for i in order]]))[0, -1]
    np.testing.assert_allclose(output, [0.3992, 0.3858, 0.8610], rtol=0, atol=5e-4)
