"""The task `copy`: a random string, then the same string again."""

import numpy as np

from mlx_attn.text.tasks.chance import choices
from mlx_attn.text.tasks.documents import Documents


def repeated_strings(
    random: np.random.Generator, count: int, vocabulary: int, length: int
) -> Documents:
    """Strings of `length / 2` uniform symbols, each repeated once.

    Every symbol but the first is scored. A symbol of the first half costs log V whatever the model,
    one of the second half nothing: on average (L/2 - 1) / (L - 1) log V, which is 1.7054 nats for
    V = 32 and L = 64. The second half is the answer.

    Args:
        random: Where the choices come from.
        count: Documents.
        vocabulary: Symbols V.
        length: Symbols L of a document, an even number.
    """
    half = choices(random, vocabulary, (count, length // 2))
    places = np.tile(half, 2)
    answers = np.zeros(places.shape, bool)
    answers[:, length // 2 :] = True
    scored = np.ones(places.shape, bool)
    scored[:, 0] = False
    nats = np.where(scored & ~answers, np.log(vocabulary), 0.0)
    return Documents([str(symbol) for symbol in range(vocabulary)], places, scored, answers, nats)
