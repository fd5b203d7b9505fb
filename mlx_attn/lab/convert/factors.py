"""What every form of attention is made of, the same for all forms.

Each form is read into these factors and written from them, so that N readers and M writers convert
N forms into M.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mlx_attn.attention.algebra import merge_query_key, merge_value_output


@dataclass(frozen=True, slots=True)
class ScoreFactors:
    """score_h(i, j) = scale * (query_h x_i + query_bias_h) . (key_g x_j + key_bias_g).

    Matrices are (out, in), as stored. The bias of the key adds the same number to all scores of a
    query and cancels in the softmax: no form needs it, but a value made from the key.
    """

    query: Float[np.ndarray, "H K C"]
    query_bias: Float[np.ndarray, "H K"]
    key: Float[np.ndarray, "kv_heads K C"]
    key_bias: Float[np.ndarray, "kv_heads K"]

    @property
    def products(self) -> Float[np.ndarray, "H C C"]:
        """S_h of every head, as stored: the query's side in the columns."""
        H, C = len(self.query), self.query.shape[2]
        merged = merge_query_key(self.query.reshape(-1, C), self.key.reshape(-1, C), H)
        return merged.reshape(H, C, C)

    @property
    def key_side_vectors(self) -> Float[np.ndarray, "H C"]:
        """u_h = W_key_h b_query_h, so that a query's bias adds scale * u_h . x_j."""
        key = np.repeat(self.key, len(self.query) // len(self.key), axis=0)
        return np.einsum("hkc,hk->hc", key, self.query_bias)

    @property
    def rows(self) -> Float[np.ndarray, "H C_1 C"]:
        """All of the score map, (x_i, 1) [S_h; u_h] x_j^T: the vector is one more row of S_h."""
        S = self.products.swapaxes(1, 2)
        return np.concatenate([S, self.key_side_vectors[:, None]], axis=1)


@dataclass(frozen=True, slots=True)
class OutputFactors:
    """y = sum_h output_h (value_g (softmax_h x) + value_bias_g) + constant.

    Matrices are (out, in), as stored.
    """

    value: Float[np.ndarray, "kv_heads D C"]
    value_bias: Float[np.ndarray, "kv_heads D"]
    output: Float[np.ndarray, "d_out width"]
    constant: Float[np.ndarray, " d_out"]

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.output.shape[1] // self.value.shape[1]

    @property
    def products(self) -> Float[np.ndarray, "H d_out C"]:
        """VO_h of every head, as stored."""
        merged = merge_value_output(
            self.value.reshape(-1, self.value.shape[2]), self.output, self.n_heads
        )
        return merged.reshape(len(merged), self.n_heads, -1).swapaxes(0, 1)

    @property
    def whole_constant(self) -> Float[np.ndarray, " d_out"]:
        """The constant with the values' biases in it: the weights of a softmax add up to 1."""
        biases = np.repeat(self.value_bias, self.n_heads // len(self.value), axis=0)
        return self.constant + self.output @ biases.reshape(-1)
