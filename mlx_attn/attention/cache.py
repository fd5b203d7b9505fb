"""What one layer keeps while it decodes: buffers of fixed length, written in place.

A position may be an integer, or an array: then one compiled graph serves every position.
"""

from collections.abc import Iterable
from copy import copy
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import ConfigError

Entries = tuple[Float[mx.array, "_ _ _ _"], ...]
Position = int | Integer[mx.array, ""]

NEVER = 2**30
"""The position of a slot that holds no token: it is after every query, so that none sees it."""


@lru_cache(maxsize=64)
def arange(n: int) -> Integer[mx.array, " n"]:
    """Return 0, 1, ..., n - 1: one constant, which all layers of a graph share."""
    return mx.array(np.arange(n, dtype=np.int32))


class Positions(NamedTuple):
    """Positions of queries, and the keys that they read."""

    query: Position  # of the first query
    queries: Integer[mx.array, " T_q"]
    first: Position  # of the first key, if the keys are in order
    keys: Integer[mx.array, " T_k"]
    whole: bool = False  # whether both are all tokens of one text

    @classmethod
    @lru_cache(maxsize=64)
    def of_text(cls, T: int) -> "Positions":
        """Return the positions of a whole text of T tokens."""
        return cls(0, arange(T), 0, arange(T), whole=True)


class KVCache:
    """The cached arrays of one attention layer, [B, heads, slots, width] each, by position.

    Token t is in slot t; with a window, in slot t mod slots, where it overwrites the token that has
    left the window. A layer that recurs keeps a state instead, as many bytes after 8000 tokens as
    after one, and a layer that reads the keys and values of an earlier one keeps nothing.

    Args:
        length: Tokens that may be read.
        window: Tokens that a query sees, itself included: as many slots are enough. 0: all.
        caches_tokens: Whether it has slots, or a state.
    """

    def __init__(self, length: int, window: int = 0, caches_tokens: bool = True):
        self.length, self.window, self.caches_tokens = length, window, caches_tokens
        self.offset: Position = 0  # tokens read, and so the position of the next one
        self.buffers: list[mx.array] = []  # key and value, then the memories of hooks; or the state
        self.rows: list[mx.array] = []  # the last rows that convolutions read, of q, k and v
        self.n_rows = 0  # of a layer with convolutions 3, from its first token on

    @property
    def slots(self) -> int:
        """How many tokens are held."""
        return min(self.length, self.window or self.length) if self.caches_tokens else 0

    @property
    def arrays(self) -> list[mx.array]:
        """Return all that it holds: the last rows that convolutions read, then the tokens."""
        return [*self.rows, *self.buffers]

    @arrays.setter
    def arrays(self, arrays: list[mx.array]) -> None:
        self.rows, self.buffers = arrays[: self.n_rows], arrays[self.n_rows :]

    def new(self, offset: Position = 0, arrays: Iterable[mx.array] = ()) -> "KVCache":
        """Return a cache of the same sizes, empty or with these arrays after `offset` tokens."""
        cache = copy(self)
        cache.offset, cache.arrays = offset, [*arrays]
        return cache

    def reserve(self, length: int) -> None:
        """Grow to hold this many tokens."""
        held, self.length = self.slots, length
        if more := self.slots - held:
            grown = [(0, 0), (0, 0), (0, more), (0, 0)]  # free slots after the tokens
            self.buffers = [mx.pad(buffer, grown) for buffer in self.buffers]

    def advance(self, T: int) -> Position:
        """Count T new tokens; return the position of the first.

        Raises:
            ConfigError: They do not fit.
        """
        start, end = self.offset, self.offset + T
        # Inside a compiled graph the offset is unknown; the caller has made room.
        if isinstance(end, int) and end > self.length:
            raise ConfigError(
                f"{end} tokens are more than the cache has room for ({self.length}): give fewer, "
                "or make it longer"
            )
        self.offset = end
        return start

    def extend(self, arrays: Entries, in_order: bool = False) -> tuple[Entries, Positions]:
        """Write the arrays of new tokens; return those visible to them, with their positions.

        They come in the order of slots, or with `in_order` copied, oldest token first.

        Raises:
            ConfigError: The tokens do not fit.
        """
        T, slots = arrays[0].shape[2], self.slots
        start = self.advance(T)
        if not self.caches_tokens:  # a state holds the earlier ones
            return arrays, _in_order(start, T, T)
        # The first tokens show the number of heads and their width.
        self.buffers = self.buffers or [
            mx.zeros((*array.shape[:2], slots, array.shape[3]), array.dtype) for array in arrays
        ]
        if self.window and T > 1:
            return self._turn(start, arrays)
        # In a ring, a single token overwrites only the one that has just left the window. The array
        # of the position keeps the compiled graph general; axis 2 is that of the slots.
        slot = mx.array(start % slots if self.window else start)
        pairs = zip(self.buffers, arrays, strict=True)
        self.buffers = [mx.slice_update(buffer, array, slot, (2,)) for buffer, array in pairs]
        if in_order:
            # Slot `offset` mod slots is the next one to be written, so it holds the oldest token.
            cached = tuple(_from_slot(buffer, self.offset % slots) for buffer in self.buffers)
            return cached, _in_order(start, T, slots)
        keys = arange(slots)  # a slot without a token is after every query, so it is masked
        if self.window:  # slot s holds the latest position p <= last with p mod slots = s
            last = self.offset - 1
            keys = _none_before_0(last - (last - keys) % slots)
        return tuple(self.buffers), Positions(start, start + arange(T), 0, keys)

    def _turn(self, start: Position, arrays: Entries) -> tuple[Entries, Positions]:
        """Read the ring, then write: the last tokens overwrite tokens that the first ones see."""
        # [B, heads, slots, width], oldest first, followed by the T new tokens.
        held = [_from_slot(buffer, start % self.slots) for buffer in self.buffers]
        cached = tuple(mx.concatenate([*pair], axis=2) for pair in zip(held, arrays, strict=True))
        ring = (array[:, :, -self.slots :] for array in cached)  # [B, heads, slots, width]
        # The last `slots` tokens, turned so that token t is in slot t mod slots again.
        self.buffers = [_from_slot(array, -self.offset % self.slots) for array in ring]
        return cached, _in_order(start, arrays[0].shape[2], cached[0].shape[2])


def _from_slot(buffer: mx.array, slot: Position) -> mx.array:
    """Return all slots from this one on, those before it last."""
    # Two copies in a row contain every rotation as one slice; a slice can start at an array.
    twice = mx.concatenate([buffer, buffer], axis=2)
    return mx.slice(twice, mx.array(slot), (2,), buffer.shape)


def _in_order(query: Position, T_q: int, T_k: int) -> Positions:
    """Return the positions of T_k keys in order, the last one at the last query."""
    first = query + T_q - T_k
    return Positions(query, query + arange(T_q), first, _none_before_0(first + arange(T_k)))


def _none_before_0(positions: mx.array) -> mx.array:
    # Slots before the text's beginning must be invisible.
    return mx.where(positions < 0, NEVER, positions)
