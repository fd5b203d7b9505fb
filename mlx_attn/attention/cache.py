"""What one layer keeps while it decodes: buffers that grow, or with a window a ring."""

import mlx.core as mx
from jaxtyping import Float

Kept = tuple[Float[mx.array, "_ _ _ _"], ...]


class AttentionCache:
    """The kept arrays of one attention layer, [B, heads, T, width] each.

    `offset` is the number of tokens read, which is the position of the next one.

    Args:
        window: Tokens that a query sees, itself included: the buffers become a ring of as many,
            with token t in slot t mod window. 0: all are held.
    """

    STEP = 256
    """Tokens that buffers grow by: growing by one would copy everything every time."""

    def __init__(self, window: int = 0):
        self.window = window
        self.offset = 0
        self._buffers: list[mx.array] = []

    def extend(self, arrays: Kept, in_order: bool = True) -> Kept:
        """Append the arrays of new tokens; return those of all tokens that these may see.

        Without `in_order` the tokens of a ring may come in any order, which saves a copy.
        """
        start, self.offset = self.offset, self.offset + arrays[0].shape[2]
        if not self._buffers:
            self._buffers = [_empty(array, 0) for array in arrays]
        if 0 < self.window < self.offset:
            return self._turn(start, arrays, in_order)
        length = -(-self.offset // self.STEP) * self.STEP
        length = min(length, self.window) if self.window else length
        for i, array in enumerate(arrays):
            if self.offset > self._buffers[i].shape[2]:
                kept = self._buffers[i][:, :, :start]
                self._buffers[i] = mx.concatenate([kept, _empty(array, length - start)], axis=2)
            self._buffers[i][:, :, start : self.offset] = array
        return tuple(buffer[:, :, : self.offset] for buffer in self._buffers)

    def _turn(self, start: int, arrays: Kept, in_order: bool) -> Kept:
        """Write over the oldest tokens, those that no later query sees."""
        window, slot = self.window, start % self.window
        if start >= window and arrays[0].shape[2] == 1:  # a decoded token
            for buffer, array in zip(self._buffers, arrays, strict=True):
                buffer[:, :, slot : slot + 1] = array
            return tuple(mx.roll(b, -slot - 1, 2) if in_order else b for b in self._buffers)
        held = [mx.roll(b, -slot, 2) if start >= window else b[:, :, :start] for b in self._buffers]
        first = max(held[0].shape[2] - window + 1, 0)
        seen = [mx.concatenate([h[:, :, first:], a], 2) for h, a in zip(held, arrays, strict=True)]
        ring = (mx.roll(array[:, :, -window:], self.offset % window, 2) for array in seen)
        self._buffers = [mx.contiguous(buffer) for buffer in ring]
        return tuple(seen)

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens, or all where a ring lost some of those."""
        if 0 < self.window < self.offset and length < self.offset - 1:
            self._buffers, self.offset = [], 0
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


def _empty(like: mx.array, length: int) -> mx.array:
    B, heads, _, width = like.shape
    return mx.zeros((B, heads, length, width), like.dtype)
