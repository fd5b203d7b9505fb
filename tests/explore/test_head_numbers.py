"""The numbers of every head in the page: what Python measured, and where it is left out."""

from typing import Any

import numpy as np

from mlx_attn.explore.page import head_numbers
from mlx_attn.probe import heads, show

TEXT = "Ben sees one of them; then it is gone?"


def test_every_cell_is_the_number_that_probe_prints(make_run):
    run = make_run()
    tokens = heads.prompt_tokens(TEXT, run.load_tokenizer(), 64)
    found: Any = heads.probe(run.load_model(), tokens)
    made: Any = head_numbers(run, TEXT, 0)
    headings = [column["heading"] for column in made["columns"]]
    row = made["rows"][3]
    assert (row["layer"], row["head"]) == (1, 1)
    cells = dict(zip(headings, row["cells"], strict=False))
    assert cells["entropy"] == show.number(found.statistics.entropy[1, 1])
    assert cells["induction"] == show.number(found.statistics.induction[1, 1])
    assert made["uniform"][0] == show.number(found.uniform["entropy"])
    np.testing.assert_allclose(made["alignment"]["S_h"], found.scores.alignment, atol=1e-3)
    assert made["measured"] == "Measured while the model reads the first text, 38 tokens."
    assert made["maps"] == "2 layers of 2 heads: 2 attention maps per layer, 4 in all."
