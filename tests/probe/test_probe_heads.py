"""Head statistics on maps whose answers are known."""

import numpy as np
import pytest

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.errors import ConfigError
from mlx_attn.probe import heads
from mlx_attn.text.tokenizers import train_tokenizer
from tests.runs import run_of, small_gpt

T = 6


def looks_at(targets: list[int]) -> np.ndarray:
    """The map of a head that looks at one token only: token i at targets[i]."""
    return np.eye(len(targets))[targets][None]


@pytest.mark.parametrize(
    ("targets", "numbers"),
    [
        ([0, 0, 1, 2, 3, 4], (0, 1, 1, 1 / 5)),
        ([0] * T, (0, 3, 1 / 5, 1)),
        (list(range(T)), (0, 0, 0, 0)),
    ],
    ids=["the token before", "the first token", "the token itself"],
)
def test_a_head_that_looks_at_one_token(targets, numbers):
    A = looks_at(targets)
    measures = (heads.entropy, heads.distance, heads.previous, heads.first)
    assert tuple(measure(A) for measure in measures) == pytest.approx(numbers)


def test_the_uniform_head_spreads_over_all_tokens_so_far():
    A = heads.uniform_map(T)
    assert heads.entropy(A) == pytest.approx(np.log(range(2, T + 1)).mean())
    assert heads.distance(A) == pytest.approx(np.mean([1 / 2, 2 / 2, 3 / 2, 4 / 2, 5 / 2]))
    average = np.mean([1 / i for i in range(2, T + 1)])
    assert heads.previous(A) == heads.first(A) == pytest.approx(average)


def test_a_head_that_looks_after_the_last_occurrence_is_an_induction_head():
    #         a b c d a  b  c  d
    targets = [0, 0, 0, 0, 1, 2, 3, 4]
    assert heads.induction(looks_at(targets)) == 1
    assert heads.induction(looks_at([0, 0, 0, 0, 0, 1, 2, 3])) == 0
    assert np.isnan(heads.induction(looks_at([0, 0])))  # no room to repeat
    assert np.isnan(heads.uniform_statistics(2, 2)["induction"])


@pytest.mark.parametrize("variant", [n for n, v in VARIANTS.items() if v.group == "forms"])
def test_every_variant_has_a_map_per_head(variant):
    gpt = small_gpt(n_heads=4, n_layers=3, **VARIANTS[variant].maps)
    tokens = np.arange(20).reshape(2, 10)
    found = heads.probe(gpt, tokens)
    texts = [heads.probe(gpt, text[None]).statistics["entropy"] for text in tokens]
    np.testing.assert_allclose(found.statistics["entropy"], np.mean(texts, axis=0), rtol=1e-4)
    assert found.maps.shape == (3, 2, 4, 10, 10)
    np.testing.assert_allclose(found.maps.sum(-1), 1, atol=1e-5)
    assert not np.triu(found.maps, 1).any()
    assert found.spectra["S"]["effective_rank"].shape == (3, 4)
    assert found.spectra["VO"]["alignment"].shape == (3, 4, 4)


def test_induction_is_measured_on_tokens_that_come_twice():
    gpt, repeated = small_gpt(start="book", context_length=12), heads.repeated_sequences(20, 12)
    once, again = np.split(repeated, 2, axis=1)
    assert (once == again).all()
    assert [len({*row}) for row in once.tolist()] == [6] * len(once)
    expected = heads.induction(heads.attention_maps(gpt, repeated)).mean(1)
    found = heads.probe(gpt, np.arange(10)[None]).statistics["induction"]
    np.testing.assert_allclose(found, expected)


def test_a_prompt_has_two_tokens_and_keeps_the_end_that_can_be_looked_at():
    tokenizer = train_tokenizer("char", "abcd")
    short, long = (run_of(small_gpt(context_length=T), tokenizer) for T in (3, 999))
    np.testing.assert_array_equal(heads.prompt_tokens(short, "aabcd"), [[1, 2, 3]])
    assert heads.prompt_tokens(long, "a" * 999).shape == (1, heads.LONGEST)
    for text in ("", "a"):
        with pytest.raises(ConfigError, match=f"the prompt is {len(text)} token"):
            heads.prompt_tokens(short, text)
