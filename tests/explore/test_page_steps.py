"""The steps of the page: their tables, pictures and matrices are what the model computes."""

from functools import partial

import numpy as np
import pytest

from mlx_attn.convert.circuits import ov_circuit, qk_circuit
from mlx_attn.explore.manifest import page_model
from mlx_attn.runs import load_run
from tests.explore.test_page_computes_what_mlx_computes import computed
from tests.explore.test_page_in_the_browser import TEXT, settled


def numbers_of(page, step: int) -> list[list[float]]:
    """The numbers of a step's table, percents as shares of 100."""
    page.run(f'document.querySelectorAll("#steps button")[{step - 1}].click()')
    rows = "[...document.querySelectorAll('.numbers tbody tr')]"
    cells = page.run(f"{rows}.map((row) => row.innerText.split('\\t').slice(1))")
    return [[float(text.strip("<\xa0%").replace("\u2212", "-")) for text in row] for row in cells]


@pytest.fixture
def steps(make_run, show):
    """A page at layer 1, head 3 and token 9, with that layer and what the run computes there."""
    run = make_run(n_heads=4, n_kv_heads=2, position="alibi", block="book")
    page = show(run, texts=[TEXT])
    page.run("document.querySelectorAll('.head')[7].click()")
    page.run("document.querySelector('.tokens [data-token=\"9\"]').click()")
    losses, made = computed(run, TEXT)
    layer = run.load_model().trf_blocks[1].att
    return page, layer, losses, {k.removeprefix("trf_blocks.1."): v for k, v in made.items()}


def test_the_titles_of_tokens_and_the_tables_of_steps_are_what_the_model_computes(steps):
    page, att, losses, made = steps
    titles = page.run("[...document.querySelectorAll('.pane .tokens button')].map((b) => b.title)")
    assert titles[1:] == [f"loss {loss:.3f} nats" for loss in losses]
    i, h = 9, 3
    size = partial(np.linalg.norm, axis=-1)
    # The tokens of most weight, first; the last two heads share the keys and values of group 1.
    weights = made["att.attn_weights"][h, i, : i + 1]
    order = np.argsort(-weights)
    q, k, v = made["att.queries"][h, i], made["att.keys"][1, order], made["att.values"][1, order]
    w, s, length = weights[order], made["att.masked"][h, i, order], size(v)
    scores = att.config.scale * k @ q
    heads, maps = made["att.context_vec"][:, i], np.array(att.out_proj.weight).T.reshape(4, 4, -1)
    stream = np.array([made[name][i] for name in ("x", "att.out", "x_mid", "ff", "x_out")])
    logits = np.sort(made["logits"][i])[::-1]
    columns = {
        3: (k @ q, scores),
        4: (scores, -att.slopes[h] * (i - order), s),
        5: (s, 100 * w),
        6: (100 * w, length, w * length),
        7: (size(heads), size(np.einsum("hd,hdc->hc", heads, maps))),
        8: (size(stream), stream @ stream[0] / size(stream) / size(stream[0])),
        9: (logits, 100 * np.exp(logits) / np.exp(logits).sum()),
    }
    for step, expected in columns.items():
        found = numbers_of(page, step)
        np.testing.assert_allclose(found, np.stack(expected, 1)[:12], 0.06, 0.06, err_msg=str(step))


NUMBERS = "(of) => Array.from(of, (row) => Array.from(row, (number) => Math.max(number, -1e9)))"


def test_the_pictures_of_steps_and_matrices_are_what_the_model_computes(steps):
    page, att, _, made = steps
    h, k, v = 3, made["att.keys"][1], made["att.values"][1]
    q, context = made["att.queries"][h], made["att.context_vec"][h]
    part = context @ np.array(att.out_proj.weight).T.reshape(4, 4, -1)[h]
    panels = {
        1: (made["x"], made["norm1"]),
        2: (q, k, v),
        3: (att.config.scale * q @ k.T,),
        4: (np.maximum(made["att.masked"][h], -1e9),),
        5: (made["att.attn_weights"][h],),
        6: (v, context),
        7: (part, made["att.out"]),
        8: (made["x"], made["att.out"], made["ff"], made["x_out"]),
    }
    for step, expected in panels.items():
        page.run(f'document.querySelectorAll("#steps button")[{step - 1}].click()')
        of_panel = "({ rows, columns, value }) => numbers(Array.from({ length: rows }, (_, r) => "
        of_panel += "Array.from({ length: columns }, (_, c) => value(r, c))))"
        found = page.run(
            f"{{ const numbers = {NUMBERS}; explorer.panes[0].panels.map({of_panel}) }}"
        )
        for picture, numbers in zip(found, expected, strict=True):
            np.testing.assert_allclose(picture, numbers, 1e-3, 1e-3, err_msg=str(step))
    layer, S = "explorer.models[0].layers[1]", qk_circuit(att)
    found = page.run(f"({NUMBERS})({layer}.scoreMatrix({h}))")
    np.testing.assert_allclose(found, S.products[h], atol=1e-3)
    found = page.run(f"({NUMBERS})({layer}.outputMatrix({h}, explorer.intact()))")
    np.testing.assert_allclose(found, ov_circuit(att).products[h], atol=1e-3)
    page.run("document.querySelector('.matrices').open = true")
    squares = S.singular_values[h] ** 2
    told = f"{squares[0] ** 0.5:.3f}, {100 * squares[0] / squares.sum():.0f}\xa0%"
    assert settled(page, f"document.querySelector('.matrices').innerText.includes({told!r})")


def test_the_formulas_of_steps_have_the_model_s_window_and_head(make_run):
    steps = page_model(load_run(str(make_run(tied_head=True, window=5).path)))["steps"][0]
    assert steps[-1]["formula"] == "p = softmax(final_norm(x) tok_emb^T)"
    assert "j <= i, none before i - 4, else" in steps[3]["formula"]


def test_a_chosen_cell_stays_after_the_pointer_was_over_a_head(steps):
    page, *_ = steps
    for chosen in ("token: 9, target: 2, held: true", "layer: 0, head: 1", "leave: true"):
        page.run(f"explorer.panes[0].choose({{ {chosen} }})")
    place = "(({ i, j, layer, h }) => [i, j, layer, h])(explorer.panes[0].context)"
    assert page.run(place) == [9, 2, 1, 3]
