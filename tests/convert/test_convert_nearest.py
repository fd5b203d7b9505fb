"""Conversions that cannot be exact give the nearest weights there are."""

import pytest

from mlx_attn.convert.measure import (
    measure_model,
    measure_ranks,
    weight_errors,
)
from mlx_attn.convert.model import convert
from mlx_attn.errors import ConfigError
from mlx_attn.training.evaluation import Evaluator


@pytest.mark.parametrize(
    ("variant", "to", "ranks"),
    [
        ("merged", "separate", (1, 4, 8, 32)),
        ("merged-output", "separate-output", (1, 4, 8, 32)),
    ],
)
def test_the_error_falls_as_the_rank_grows(trained, variant, to, ranks):
    model = trained(variant=variant)
    errors = [max(weight_errors(model, convert(model, to, rank=rank))) for rank in ranks]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-5


def test_each_rank_is_reported_with_its_loss_size_and_cache(run, corpus):
    seen = []
    curve = measure_ranks(run, "separate", (8, 2), corpus, lambda *done: seen.append(done))
    assert seen == [(8, 1), (2, 2)]
    whole, cut = curve.points
    assert (whole.rank, cut.rank) == (8, 2)
    assert whole.metrics == curve.original
    assert whole.metrics == measure_model(run.load_model(), Evaluator(corpus.val, 32))
    assert cut.metrics.val_loss > whole.metrics.val_loss
    assert cut.error > 0.01
    # Per layer, four keys of 2 and four values of 8, four bytes each.
    assert cut.metrics.cache_bytes_per_token == 2 * 4 * (2 + 8) * 4
    # Per layer, query and key of four heads lose 6 of 8 rows and as many biases.
    assert whole.metrics.params - cut.metrics.params == 2 * 2 * 4 * 6 * (32 + 1)


def test_too_few_tokens_for_a_fit_are_refused_with_how_many_it_takes(trained, windows):
    """Its weights would be as large as rounding allows."""
    with pytest.raises(ConfigError, match=r"^32 tokens are .* 33 unknown .* at least 66 tokens"):
        convert(trained(), "no-out-proj", tokens=windows[:1])
