"""How the page reads a text: after the document's start, with its loss, and what it cannot know."""

import json

import pytest

import mlx_attn
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import load_run
from mlx_attn.text.tokenizers import train_tokenizer

pytestmark = pytest.mark.slow
TEXT = "Ben sees one of them; then it is gone?"
TALES = {"corpus": "tales"}
TOKENS = "[...document.querySelectorAll('.tokens button')].map((b) => b.innerText)"
LOSS = "explorer.lossOf(explorer.state.readings[0].trace)"
NOTE = 'document.getElementById("unfamiliar")'


def write(page, text: str) -> None:
    page.run(f"""document.getElementById("text").value = {json.dumps(text)},
      document.getElementById("text").dispatchEvent(new Event("input"))""")


@pytest.mark.parametrize(
    ("kind", "corpus", "start"),
    [
        ("char", "tales", 1),
        ("bpe", "tales", 1),
        ("char", "book.txt", 0),
        ("byte", "tinystories", len("<|endoftext|>\n")),
    ],
)
def test_the_loss_of_a_text_is_what_python_says(kind, corpus, start, make_run, show):
    tokenizer = None if kind == "char" else train_tokenizer(kind, TEXT * 9, 400)
    run = make_run(tokenizer=tokenizer, facts={"corpus": corpus})
    page = show(run, texts=[TEXT])
    assert page.run("explorer.state.readings[0].trace.start") == start
    assert page.run(LOSS) == pytest.approx(mlx_attn.load(run.path).loss(TEXT), abs=1e-5)


def test_the_start_is_shown_once_and_is_not_part_of_the_text(make_run, show):
    page = show(make_run(facts=TALES), texts=["Ben"])
    assert page.run(TOKENS) == ["start", "B", "e", "n"]
    assert page.run('document.getElementById("text").value') == "Ben"
    title = page.run("document.querySelector('.tokens .start').title")
    assert title.startswith("Before each document of the training text")
    before = page.run(LOSS)
    write(page, "\nBen")
    assert page.run(TOKENS) == ["start", "B", "e", "n"]
    assert page.run(LOSS) == before


def test_it_writes_as_the_run_does(make_run, show):
    run = make_run(facts=TALES)
    page = show(run, texts=[TEXT])
    for _ in range(12):
        page.run('document.getElementById("one").click()')
    steps = load_run(str(run.path)).stream(TEXT, SamplerConfig(temp=0.0), 12)
    written = page.run('document.getElementById("text").value')
    assert written == TEXT + "".join(step.text for step in steps)


def test_a_text_that_costs_more_than_guessing_is_said_to_be_unknown(make_run, show):
    page = show(make_run(facts=TALES), texts=[TEXT, "Ann"], words=["Ben", "sees"])
    note = page.run(f"{NOTE}.innerText")
    assert page.run(LOSS) > page.run("Math.log(explorer.models[0].config.vocab_size)")
    assert note.startswith("This model has only read made-up stories: this text costs it ")
    assert "Try text 1 to 2, or train on your own: mlx-attn train --data notes/" in note
