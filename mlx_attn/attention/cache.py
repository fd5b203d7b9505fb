"""What one layer keeps while it decodes: buffers of fixed length, written in place.

A position may be an integer, or an array: then one compiled graph serves every position.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import ConfigError

Kept = tuple[Float[mx.array, "_ _ _ _"], ...]
Position = int | Integer[mx.array, ""]

NEVER = 2**30
"""The position of a slot that holds no token: it is after every query, so that none sees it."""


@lru_cache(maxsize=64)
def counted(n: int) -> Integer[mx.array, " n"]:
    """0, 1, ..., n - 1: one constant, which all layers of a graph share."""
    return mx.array(np.arange(n, dtype=np.int32))


class Places(NamedTuple):
    """Where queries stand, and the keys that they read.

    Attributes:
        query: Position of the first query.
        queries: Position of every query.
        first: Position of the first key, where the keys are in order.
        keys: Position of every key.
        whole: Whether both are all tokens of one text.
    """

    query: Position
    queries: Integer[mx.array, " T_q"]
    first: Position
    keys: Integer[mx.array, " T_k"]
    whole: bool = False

    @classmethod
    def of_text(cls, T: int, read: int = 0) -> "Places":
        """Those of a text of T tokens without a cache, or after `read` of them."""
        queries = read + counted(T - read) if read else counted(T)
        return cls(read, queries, 0, counted(T), whole=not read)


class AttentionCache:
    """The kept arrays of one attention layer, [B, heads, slots, width] each.

    Token t is in slot t mod slots. `offset` is the number of tokens read, which is the position of
    the next one.

    Args:
        length: Tokens that there is room for.
        window: Tokens that a query sees, itself included: as many slots are enough. 0: all tokens
            are seen.
    """

    def __init__(self, length: int, window: int = 0):
        self.length, self.window = length, window
        self.offset: Position = 0
        self.buffers: list[mx.array] = []

    def new(self, offset: Position = 0, buffers: Iterable[mx.array] = ()) -> "AttentionCache":
        """A cache of the same sizes, empty or with these buffers after `offset` tokens."""
        cache = AttentionCache(self.length, self.window)
        cache.offset, cache.buffers = offset, [*buffers]
        return cache

    def extend(self, arrays: Kept, in_order: bool = False) -> tuple[Kept, Places]:
        """Write the arrays of new tokens; return what these may read, and where it stands.

        Slots come as they are, or with `in_order` from the oldest token to the newest: a copy.

        Raises:
            ConfigError: There is no room for so many tokens.
        """
        start, T = self.offset, arrays[0].shape[2]
        self._check_room(T)
        self.buffers = self.buffers or [_empty(array, self.slots) for array in arrays]
        self.offset = start + T
        if self.window and T > 1:
            return self._turn(start, arrays)
        slot = _as_array(start % self.slots if self.window else start)
        pairs = zip(self.buffers, arrays, strict=True)
        self.buffers = [mx.slice_update(buffer, array, slot, (2,)) for buffer, array in pairs]
        if not in_order:
            return tuple(self.buffers), Places(start, start + counted(T), 0, self._positions())
        kept = tuple(_from_slot(buffer, self.offset % self.slots) for buffer in self.buffers)
        return kept, _in_order(start, T, self.slots)

    def _turn(self, start: Position, arrays: Kept) -> tuple[Kept, Places]:
        """The first of several queries see tokens of the ring that the last ones write over."""
        held = [_from_slot(buffer, start % self.slots) for buffer in self.buffers]
        kept = tuple(mx.concatenate([*pair], axis=2) for pair in zip(held, arrays, strict=True))
        ring = (array[:, :, -self.slots :] for array in kept)
        self.buffers = [_from_slot(array, -self.offset % self.slots) for array in ring]
        return kept, _in_order(start, arrays[0].shape[2], kept[0].shape[2])

    def _positions(self) -> Integer[mx.array, " slots"]:
        """The position of the token in each slot."""
        slots = counted(self.slots)
        if not self.window:  # a slot without a token is after every query
            return slots
        last = self.offset - 1
        return _none_before_0(last - (last - slots) % self.slots)

    def _check_room(self, T: int) -> None:
        read = self.offset if isinstance(self.offset, int) else 0
        if read + T > self.length:
            raise ConfigError(
                f"{read + T} tokens are more than the cache has room for ({self.length}): give "
                "fewer, or make it longer"
            )

    def reserve(self, length: int) -> None:
        """Make room for so many tokens, more than there was for."""
        held, self.length = self.slots, length
        grown = [(0, 0), (0, 0), (0, self.slots - held), (0, 0)]
        self.buffers = [mx.pad(buffer, grown) for buffer in self.buffers]

    @property
    def slots(self) -> int:
        """How many tokens are held."""
        return min(self.length, self.window or self.length)

    @property
    def floats_per_token(self) -> int:
        """Numbers kept for each token of one sequence."""
        return sum(buffer.shape[1] * buffer.shape[3] for buffer in self.buffers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes kept for each token of one sequence."""
        return sum(b.shape[1] * b.shape[3] * b.itemsize for b in self.buffers)


def _empty(like: mx.array, slots: int) -> mx.array:
    B, heads, _, width = like.shape
    return mx.zeros((B, heads, slots, width), like.dtype)


def _as_array(position: Position) -> mx.array:
    return mx.array(position) if isinstance(position, int) else position


def _from_slot(buffer: mx.array, slot: Position) -> mx.array:
    """All slots from this one on, those before it last."""
    twice = mx.concatenate([buffer, buffer], axis=2)
    return mx.slice(twice, _as_array(slot), (2,), buffer.shape)


def _in_order(query: Position, T_q: int, T_k: int) -> Places:
    """T_k keys in order, the last one at the last query."""
    first = query + T_q - T_k
    return Places(query, query + counted(T_q), first, _none_before_0(first + counted(T_k)))


def _none_before_0(positions: mx.array) -> mx.array:
    return mx.where(positions < 0, NEVER, positions)
