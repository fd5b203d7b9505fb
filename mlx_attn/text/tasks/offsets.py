"""The task `offsets`: what stands at several places, all at once and in order."""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from mlx_attn.text.tasks.chance import choices
from mlx_attn.text.tasks.documents import Documents


def spelled_numbers(
    random: np.random.Generator, count: int, base: int, numbers: int, offsets: Sequence[int]
) -> Documents:
    """Random digits, each followed by the number that digits at given distances before it spell.

    Digits stand at the even places of a document, numbers at the odd ones:

        y_t = sum_i base^(m - i) x_(t - offset_i),   i = 1, 2, ..., m

    One symbol stands for the whole number, so all m digits must be known at once, and each with its
    offset. Numbers whose digits all lie in the document are the answers and alone are scored, so
    the floor is 0; in the others what is missing counts as 0.

    Args:
        random: Where the choices come from.
        count: Documents.
        base: The digits are 0 to one less.
        numbers: Digits of a document, and numbers.
        offsets: The m distances, odd numbers.
    """
    digits = choices(random, base, (count, numbers))
    places = np.stack([digits, base + numbers_of(digits, base, offsets)], -1)
    scored = np.zeros(places.shape, bool)
    scored[:, max(offsets) // 2 :, 1] = True
    places, scored = (array.reshape(count, 2 * numbers) for array in (places, scored))
    spelled = ["=" + "".join(d) for d in itertools.product(_digits(base), repeat=len(offsets))]
    return Documents([*_digits(base), *spelled], places, scored, scored, np.zeros(places.shape))


def numbers_of(
    digits: Int64[np.ndarray, "D numbers"], base: int, offsets: Sequence[int]
) -> Int64[np.ndarray, "D numbers"]:
    """The number that follows each digit."""
    total = np.zeros_like(digits)
    for offset in offsets:
        back = offset // 2  # digits
        total *= base
        total[:, back:] += digits[:, : digits.shape[1] - back]
    return total


def _digits(base: int) -> list[str]:
    return [str(digit) for digit in range(base)]
