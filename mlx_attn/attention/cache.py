"""What decoding remembers: one growing buffer per array that attention asks to keep."""

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float

STEP = 256
"""Buffers grow by this many tokens at a time: growing by one copies everything every time."""

Memory = tuple[Float[mx.array, "_ _ _ _"], ...]


class AttentionCache:
    """The remembered arrays of one attention layer, [B, heads, T, width] each.

    `offset` is the number of tokens held, which is the position of the next one.
    """

    def __init__(self):
        self.offset = 0
        self._buffers: list[mx.array] = []

    def extend(self, arrays: Memory) -> Memory:
        """Append the arrays of new tokens; return those of all tokens so far."""
        if not self._buffers:
            self._buffers = [_empty(array, 0) for array in arrays]
        end = self.offset + arrays[0].shape[2]
        for i, array in enumerate(arrays):
            if end > self._buffers[i].shape[2]:
                self._buffers[i] = self._grown(i, array, end)
            self._buffers[i][:, :, self.offset : end] = array
        self.offset = end
        return tuple(buffer[:, :, :end] for buffer in self._buffers)

    def _grown(self, i: int, array: mx.array, end: int) -> mx.array:
        room = -(-end // STEP) * STEP - self.offset
        return mx.concatenate([self._buffers[i][:, :, : self.offset], _empty(array, room)], axis=2)

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.offset = min(self.offset, length)

    @property
    def state(self) -> list[mx.array]:
        """The buffers themselves, for `mx.eval`."""
        return self._buffers

    @property
    def floats_per_token(self) -> int:
        """Numbers kept for each token of one sequence."""
        return sum(buffer.shape[1] * buffer.shape[3] for buffer in self._buffers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes kept for each token of one sequence."""
        return sum(b.shape[1] * b.shape[3] * b.itemsize for b in self._buffers)


def cache_state(caches: Sequence[AttentionCache]) -> list[mx.array]:
    """The buffers of all layers, for `mx.eval`."""
    return [buffer for cache in caches for buffer in cache.state]


def _empty(like: mx.array, length: int) -> mx.array:
    B, heads, _, width = like.shape
    return mx.zeros((B, heads, length, width), like.dtype)
