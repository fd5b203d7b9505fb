"""The book's two attention classes (chapter 3), with the book's constructors.

A reader of *Build a Large Language Model (From Scratch)* swaps the class and nothing else; the
extra keywords change one part at a time.
"""

from typing import Any

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.module import Attention


class CausalAttention(Attention):
    """One head and no output projection (the book's section 3.5).

    Args:
        d_in: Width of the input.
        d_out: Width of the head and of the output.
        context_length: Longest sequence.
        dropout: Dropout of the attention weights, in [0, 1).
        qkv_bias: Whether W_query, W_key and W_value have biases.
        **choices: Any other key of `AttentionConfig`, such as `score="merged"`.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        qkv_bias: bool = False,
        **choices: Any,
    ):
        settings: dict[str, Any] = {
            "d_in": d_in,
            "d_out": d_out,
            "context_length": context_length,
            "drop_rate": dropout,
            "qkv_bias": qkv_bias,
            "output": "none",
        }
        super().__init__(AttentionConfig(**(settings | choices)))


class MultiHeadAttention(CausalAttention):
    """Several heads and an output projection (the book's section 3.6).

    Args:
        d_in: Width of the input.
        d_out: Width of all heads together and of the output.
        context_length: Longest sequence.
        dropout: Dropout of the attention weights, in [0, 1).
        num_heads: Number of heads; d_out must be a multiple of it.
        qkv_bias: Whether W_query, W_key and W_value have biases.
        **choices: Any other key of `AttentionConfig`, such as `output="none"`.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
        **choices: Any,
    ):
        defaults = {"n_heads": num_heads, "output": "linear"}
        super().__init__(d_in, d_out, context_length, dropout, qkv_bias, **(defaults | choices))
