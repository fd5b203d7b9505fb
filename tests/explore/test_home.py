"""The home page of runs, and the numbers of every head in the page of one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlx_attn.explore.page import head_numbers, home_of, render_home
from mlx_attn.probe import heads, show
from mlx_attn.run_directory import open_run
from mlx_attn.runs import load_run, summarise_runs

TEXT = "Ben sees one of them; then it is gone?"
TALES = {"corpus": "tales", "digest": "d1"}
NAMES = "[...document.querySelectorAll('.group tbody th')].map((cell) => cell.innerText.trim())"


def report(run, losses, planned=0, reason="done"):
    """Write the reports of a training."""
    run.add_report({"event": "start", "step": 0, "params": 1234})
    for n, loss in enumerate(losses, 1):
        steps = {"step": n, "steps": planned or len(losses), "tokens": 100 * n}
        run.add_report({"event": "step", **steps, "loss": loss})
    run.add_report({"event": "eval", "step": 1, "tokens": 100, "val_loss": min(losses)})
    run.add_report({"event": "end", "steps": len(losses), "reason": reason})
    run.add_sample(1, TEXT)


@pytest.fixture(scope="module")
def runs(make_run):
    """A folder with two runs of one text, one of another, one interrupted and one damaged."""
    folder = make_run("a", facts=TALES, data="gone.txt").path.parent
    others = {"b": {}, "c": {"digest": "d2", "corpus": "book.txt"}, "half": {}}
    for name, facts in others.items():
        made = make_run(name, facts={**TALES, **facts}, data="gone.txt")
        made.path.rename(folder / name)
    for at, name in enumerate(("a", "b", "c")):
        report(open_run(folder / name), [3.0, 2.0, 1.5 - 0.1 * at])
    report(open_run(folder / "half"), [3.0, 2.5], planned=9, reason="interrupted")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    return folder


def test_a_row_says_what_was_trained_and_how_well(runs):
    found, models = home_of(summarise_runs(runs))
    rows = {row["name"]: row for row in found}
    a = rows["a"]
    assert models[a["model"]]["validation"] == {"text": "d1", "loss": a["val_loss"]}
    what = {"variant": "standard", "text": "made-up stories", "seed": 0, "parameters": 1234}
    how_well = {"val_loss": 1.5, "best_at": 100, "steps": 3, "ended": True}
    assert a == {**a, **what, **how_well}
    assert a["curve"] == [(100, 3.0), (200, 2.0), (300, 1.5)]
    assert rows["broken"]["problem"]
    assert '"name": "?"' in render_home([{**a, "name": "\udcff"}], [])  # a byte that is not UTF-8


@pytest.mark.slow
def test_the_page_says_nothing_asks_for_nothing_and_lists_all(runs, browser, tmp_path):
    path, found = tmp_path / "home.html", {each.name: each for each in summarise_runs(runs)}
    copy = replace(found["b"], name="copy", val_loss=1.4 - 1e-8, changed=1e10)  # made later
    path.write_text(render_home(*home_of([copy, *found.values()])), "utf-8")
    page = browser.open(path.as_uri())
    assert page.run("document.querySelector('#answers b').dir") == "auto"  # apart from the loss
    assert sorted(page.run(NAMES)) == ["a", "b", "c", "copy", "half"]
    assert "6 runs, 2 texts." in page.run("document.getElementById('answers').innerText")
    assert "b, 1.400 nats per token" in page.run("document.getElementById('answers').innerText")
    told = page.run("document.querySelector('.groups').innerText")
    assert "another text: its losses cannot be compared with those above" in told
    assert "unfinished: 2 of 9" in told
    assert "0 seconds ago" in told
    curve = page.run("document.querySelector('[data-run=b]').getAttribute('points')")
    (x, y), *_, (last_x, last_y) = (map(float, point.split(",")) for point in curve.split())
    assert x < last_x
    assert y < last_y  # the loss falls, and below is a larger y
    dot = "document.querySelector('[data-run=b] + circle').getAttribute('cx')"
    assert float(page.run(dot)) == pytest.approx(x, abs=0.1)  # best after the first of three
    page.run("document.querySelectorAll('.group th button')[1].click()")
    assert page.run(NAMES) == ["copy", "b", "a", "half", "c"]
    page.run("document.querySelectorAll('.group input').forEach((box) => box.click())")
    assert page.run("document.getElementById('compare').getAttribute('href')") == "#run=copy&run=b"
    assert page.said == []
    assert len(page.requests) == 1
    page = browser.open(f"{path.as_uri()}#run=b")
    columns = "explorer.models[0].manifest.heads.columns.map(({ cells }) => cells[3])"
    cells = "[...document.querySelectorAll('[data-head=\"1.1\"] td')].map((td) => td.textContent)"
    assert page.run(cells) == page.run(columns)


def test_every_cell_is_the_number_that_probe_prints(make_run):
    loaded = load_run(str(make_run().path))
    found: Any = heads.probe(loaded.model, heads.prompt_tokens(loaded, TEXT))
    made: Any = head_numbers(loaded, TEXT, None)
    assert made["heads"][3] == (1, 1)
    cells = {column["heading"]: column["cells"][3] for column in made["columns"]}
    assert cells["entropy"] == show.number(found.statistics["entropy"][1, 1])
    assert cells["induction"] == show.number(found.statistics["induction"][1, 1])
    assert made["columns"][0]["uniform"] == show.number(found.uniform["entropy"])
    np.testing.assert_allclose(made["alignment"]["S_h"], found.spectra["S"]["alignment"], atol=1e-3)
    assert made["measured"] == "Measured while the model reads the first text, 38 tokens."
    assert made["patterns"].startswith("2 layers of 2 heads: 2 attention maps per layer, 4 in all.")
