"""The task `offsets`: a function of what stands at several places at once."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from mlx_attn.text.tasks.chance import choices
from mlx_attn.text.tasks.documents import Documents


def weighted_sums(
    random: np.random.Generator, count: int, modulus: int, sums: int, offsets: Sequence[int]
) -> Documents:
    """Random digits, each followed by a sum of digits that stand at given distances before it.

    Digits stand at the even places of a document, sums at the odd ones:

        y_t = sum_i i x_(t - offset_i) mod modulus,   i = 1, 2, ..., m

    Each summand has its own factor, so it matters which digit stands at which offset. Sums whose
    summands all lie in the document are the answers and alone are scored, so the floor is 0; in the
    others what is missing counts as 0.

    Args:
        random: Where the choices come from.
        count: Documents.
        modulus: Of the sums; the digits are 0 to one less.
        sums: Digits of a document, and sums.
        offsets: The m distances, odd numbers.
    """
    digits = choices(random, modulus, (count, sums))
    places = np.stack([digits, modulus + sums_of(digits, modulus, offsets)], -1)
    scored = np.zeros(places.shape, bool)
    scored[:, max(offsets) // 2 :, 1] = True
    flat = places.reshape(count, 2 * sums), scored.reshape(count, 2 * sums)
    symbols = [str(d) for d in range(modulus)] + [f"={d}" for d in range(modulus)]
    return Documents(symbols, flat[0], flat[1], flat[1], np.zeros(flat[0].shape))


def sums_of(
    digits: Int64[np.ndarray, "D sums"], modulus: int, offsets: Sequence[int]
) -> Int64[np.ndarray, "D sums"]:
    """The sum that follows each digit."""
    total = np.zeros_like(digits)
    for factor, offset in enumerate(offsets, 1):
        back = offset // 2
        total[:, back:] += factor * digits[:, : digits.shape[1] - back]
    return total % modulus
