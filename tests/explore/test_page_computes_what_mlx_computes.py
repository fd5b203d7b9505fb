"""Logits and losses of the page against MLX, for every variant, position and tokenizer."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.attention.config import VARIANTS

TEXT = "Ben has one red kite; then nine?"
LOGITS = """(() => {
  const model = explorer.models[0];
  const ids = model.tokenizer.encode(%s);
  return { ids, logits: model.trace(ids).logits.map((row) => Array.from(row)) };
})()"""


def largest_difference(run, page) -> float:
    """Between the logits of MLX and of the page, for each token of the text."""
    ids = run.load_tokenizer().encode(TEXT)
    found = page.run(LOGITS % repr(TEXT))
    assert found["ids"] == ids.tolist()
    expected = run.load_model()(mx.array(ids)[None])[0]
    return np.abs(np.array(found["logits"]) - np.array(expected)).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant(variant, make_run, show):
    run = make_run(variant=variant)
    assert largest_difference(run, show(run)) < 1e-4
