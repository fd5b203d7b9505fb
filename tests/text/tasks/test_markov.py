"""The plateaus of in-context Markov chains: uniform, single-state frequencies, Bayes optimum."""

import math

import numpy as np
import pytest

from mlx_attn.text.tasks import Documents, draw


@pytest.fixture(scope="module")
def chains() -> Documents:
    return draw("markov", 4000)


def mean_and_error(nats: np.ndarray) -> tuple[float, float]:
    """Over documents."""
    each = nats[:, 1:].mean(axis=1)
    return float(each.mean()), float(each.std() / math.sqrt(len(each)))


def test_a_uniform_guess_costs_the_logarithm_of_the_states(chains):
    assert math.log(len(chains.symbols)) == pytest.approx(1.0986, abs=5e-5)


def test_the_bayes_optimum_is_where_theory_has_it(chains):
    mean, error = mean_and_error(chains.nats)
    assert mean == pytest.approx(0.8854, abs=3 * math.hypot(error, 0.002))


def test_counting_states_alone_lies_between_the_two(chains):
    hot = np.eye(3)[chains.places]
    seen = hot.cumsum(axis=1) - hot + 1
    nats = -np.log((seen * hot).sum(axis=-1) / seen.sum(axis=-1))
    mean, error = mean_and_error(nats)
    assert mean == pytest.approx(1.0090, abs=3 * error)


def test_no_predictor_of_the_same_chains_is_better_than_the_optimum(chains):
    """Other pseudo-counts are worse, beyond sampling error; so no model ends below the floor."""
    documents = np.arange(len(chains.places))
    for prior in (0.3, 3.0):
        seen, nats = np.full((len(documents), 3, 3), prior), np.zeros(chains.places.shape)
        for t in range(1, chains.places.shape[1]):
            row = seen[documents, chains.places[:, t - 1]]
            nats[:, t] = np.log(row.sum(axis=-1) / row[documents, chains.places[:, t]])
            seen[documents, chains.places[:, t - 1], chains.places[:, t]] += 1
        mean, error = mean_and_error(nats - chains.nats)
        assert mean > 3 * error
