"""Carries what is known of each byte of the tales over to their tokens."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64, UInt8, UInt16

from mlx_attn.text.tokenizers import Tokenizer


def byte_offsets(tokenizer: Tokenizer, tokens: UInt16[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """The offset in the text's UTF-8 of the first byte of each token."""
    lengths = _by_token(tokenizer, map(len, _pieces(tokenizer)))[tokens]
    return np.cumsum(lengths) - lengths


def token_abilities(
    tokenizer: Tokenizer,
    tokens: UInt16[np.ndarray, " N"],
    offsets: Int64[np.ndarray, " N"],
    byte_abilities: UInt8[np.ndarray, " M"],
) -> UInt8[np.ndarray, " N"]:
    """The ability that each token needs: that of its first byte that is not a space."""
    spaces = _by_token(tokenizer, map(_leading_spaces, _pieces(tokenizer)))[tokens]
    return byte_abilities[offsets + spaces]


def _pieces(tokenizer: Tokenizer) -> Iterable[bytes]:
    return map(tokenizer.token_bytes, range(tokenizer.vocab_size))


def _by_token(tokenizer: Tokenizer, values: Iterable[int]) -> Int64[np.ndarray, " V"]:
    return np.fromiter(values, np.int64, tokenizer.vocab_size)


def _leading_spaces(piece: bytes) -> int:
    rest = piece.lstrip(b" ")
    return len(piece) - len(rest) if rest else 0
