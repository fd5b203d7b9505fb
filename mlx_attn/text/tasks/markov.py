"""The task `markov`: a random walk whose transition probabilities must be learned from itself."""

import numpy as np
from jaxtyping import Float64, Int64

from mlx_attn.text.tasks.chance import choices, simplex
from mlx_attn.text.tasks.documents import Documents

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def random_chains(random: np.random.Generator, count: int, states: int, length: int) -> Documents:
    """Markov chains, each of its own transition matrix with rows drawn from Dirichlet(1, ..., 1).

    In-context learning of Markov chains (Edelman et al., arXiv:2402.11004). All transitions are
    scored. Their floor is the loss of the Bayes optimum on these very documents; see `bayes_nats`.

    Args:
        random: Where the choices come from.
        count: Documents.
        states: States, at most 26.
        length: States that a chain goes through.
    """
    bounds = simplex(random, (count, states, states)).cumsum(axis=-1)[..., :-1]
    places = np.empty((count, length), np.int64)
    places[:, 0] = choices(random, states, (count,))
    for t in range(1, length):
        row = bounds[np.arange(count), places[:, t - 1]]
        places[:, t] = (random.random((count, 1)) >= row).sum(axis=-1)
    scored = np.ones(places.shape, bool)
    scored[:, 0] = False
    return Documents(_LETTERS[:states], places, scored, scored, bayes_nats(places, states))


def bayes_nats(places: Int64[np.ndarray, "D L"], states: int) -> Float64[np.ndarray, "D L"]:
    """-log of the posterior predictive probability of each transition; 0 for the first state.

    Under a Dirichlet(1, ..., 1) prior, after n_ij transitions from i to j,

        p(j | i) = (n_ij + 1) / (sum_k n_ik + states)
    """
    documents = np.arange(len(places))
    seen = np.ones((len(places), states, states))
    nats = np.zeros(places.shape)
    for t in range(1, places.shape[1]):
        row = seen[documents, places[:, t - 1]]
        nats[:, t] = np.log(row.sum(axis=-1) / row[documents, places[:, t]])
        seen[documents, places[:, t - 1], places[:, t]] += 1
    return nats
