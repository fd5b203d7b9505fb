"""The page as a person uses it: answers, switches, losses, no errors."""

import re
import time

import pytest

import mlx_attn
from mlx_attn.runs import load_run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.text.tokenizers import train_tokenizer

TEXT = "Ben sees one of them; then it is gone?"


def settled(page, expression: str, expected: object = True):
    """Wait up to two seconds for an expression to have the expected value, and return it."""
    end = time.monotonic() + 2
    while (found := page.run(expression)) != expected and time.monotonic() < end:
        pass
    return found


def switch(page, name: str) -> None:
    page.run(f'document.getElementById("{name}").click()')


EFFECT = 'document.getElementById("effect").textContent'
FAILURE = 'document.getElementById("failure").textContent'
ANSWER = 'document.getElementById("answers").textContent'


@pytest.fixture
def page(make_run, show):
    return show(make_run(), texts=[TEXT, "Ann has nine"])


def test_it_asks_for_nothing_and_says_nothing(page):
    settled(page, f"{ANSWER}.includes('Of its 4 heads')")
    for step in range(9):
        page.run(f'document.querySelectorAll("#steps button")[{step}].click()')
    switch(page, "mask")
    assert page.said == []
    assert [url for url in page.requests if not url.startswith("file:")] == []
    assert len(page.requests) == 1


def test_the_answer_comes_first_and_only_the_page_s_own_script_may_run(page):
    assert settled(page, f"{ANSWER}.startsWith('It continues with')")
    assert page.run('document.querySelector("h1").textContent').startswith("What does run attend")
    page.run("""(() => {
      const script = document.createElement("script");
      script.textContent = "globalThis.intruder = true";
      document.body.append(script);
    })()""")
    assert page.run("globalThis.intruder") is None


@pytest.mark.parametrize("name", ["mask", "positions", "projection", "off", "scoreless"])
def test_a_switch_changes_the_loss_at_once_and_back(name, page):
    before = page.run("explorer.mean(explorer.losses(explorer.state.readings[0].trace))")
    switch(page, name)
    assert "→" in page.run(EFFECT)
    page.run('document.getElementById("restore").click()')
    assert page.run("explorer.mean(explorer.losses(explorer.state.readings[0].trace))") == before
    assert page.run(EFFECT).startswith("nothing off")


def test_the_head_that_the_answer_names_is_the_one_whose_loss_rises_most(page):
    without = """explorer.panes[0].thumbs.map(({ layer, head }) => {
      const edits = explorer.intact(), [{ tokens }] = explorer.state.readings;
      edits.heads[`${layer}.${head}`] = { off: true, scores: true, temperature: 1, rank: Infinity };
      return explorer.lossOf(explorer.models[0].trace(tokens, edits));
    })"""
    losses = page.run(without)
    intact = page.run("explorer.lossOf(explorer.state.readings[0].plain)")
    layer, head = divmod(losses.index(max(losses)), 2)
    told = f"layer {layer}, head {head} most here: +{max(losses) - intact:.3f} nats"
    assert settled(page, f"{ANSWER}.includes({told!r})")


def write(page, text: str) -> None:
    field = "document.getElementById('text')"
    page.run(f"{field}.value = {text!r}; {field}.dispatchEvent(new Event('input'))")


@pytest.mark.parametrize("text", ["", "é"])
def test_a_text_that_cannot_be_read_empties_the_page_until_another_is_typed(text, page):
    write(page, text)
    for name in ("mask", "one"):
        switch(page, name)
    assert page.run('document.getElementById("text").value') == text
    assert page.run("document.getElementById('failure').innerText")
    assert not re.search("continues|Next after|loss \\d", page.run("document.body.innerText"))
    switch(page, "mask")
    write(page, "Ann")
    assert "Next after" in page.run("document.body.innerText")
    assert page.run(EFFECT).startswith("nothing off")
    assert page.said == []


@pytest.mark.parametrize(("text", "new"), [("Ben is", 0), ("Ben i", 0), ("Be i", 1), ("Ben o", 1)])
def test_a_word_that_was_never_read_is_told_once_it_is_written(text, new, make_run, show):
    page = show(make_run(), texts=[text], words=["Ben", "is"])
    told = "document.body.innerText.includes('never read')"
    assert settled(page, told, bool(new)) == bool(new)


WRITES_A_CHARACTER = """
const model = explorer.models[0], trace = model.trace.bind(model), bytes = [0xe6, 0x97, 0xa5];
model.trace = (tokens, ...more) => {
  const found = trace(tokens, ...more), likely = new Float32Array(model.config.vocab_size);
  likely[bytes[tokens.length % 3]] = 9;
  return Object.assign(found, { logits: [...found.logits.slice(0, -1), likely] });
};"""


def test_a_character_of_several_tokens_is_written_whole(make_run, show):
    page = show(make_run(tokenizer=train_tokenizer("byte", "")), texts=["abc"])
    page.run(WRITES_A_CHARACTER)
    write(page, "abcd" * 3)
    for text in ("", "", "日", "日", "日", "日日"):
        switch(page, "one")
        assert page.run('document.getElementById("text").value') == "abcd" * 3 + text
    assert page.said == []


def test_two_runs_that_read_alike_still_do_when_the_text_outgrows_the_context(make_run, show):
    page = show(make_run("one"), make_run("two", variant="merged"), texts=[TEXT * 2])
    for _ in range(40):
        switch(page, "one")
    read = page.run("explorer.state.readings.map(({tokens}) => tokens)")
    assert read[0] == read[1]
    assert len(read[0]) < len(TEXT * 2)


def test_a_text_that_one_of_two_runs_cannot_read_is_told_whatever_is_clicked(make_run, show):
    other = make_run("two", tokenizer=train_tokenizer("char", "xyz"))
    page = show(make_run("one"), other, texts=[TEXT])
    page.run('document.querySelectorAll("#steps button")[2].click()')
    assert "not among the 3 characters" in page.run(FAILURE)
    write(page, "x")
    switch(page, "restore")
    assert "not among" in page.run(FAILURE)
    assert page.said == []


def test_markup_in_a_text_stays_text(make_run, show):
    text = "</script><img src=x onerror=alert(1)>"
    run = make_run(tokenizer=train_tokenizer("byte", ""))
    page = show(run, texts=[text])
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run('document.getElementById("text").value') == text


def test_two_runs_are_compared_head_by_head_and_token_by_token(make_run, show):
    page = show(make_run("one"), make_run("two", variant="merged"), texts=[TEXT])
    apart = "explorer.apart"
    largest = page.run(f"Math.max(...{apart}.gaps.map(Math.abs))")
    losses = "explorer.state.readings.map(({trace}) => explorer.losses(trace))"
    expected = page.run(f"(([a, b]) => Math.max(...a.map((v, i) => Math.abs(v - b[i]))))({losses})")
    assert largest == expected > 0
    weights = "explorer.state.readings.map(({trace}) => trace.blocks[1][9].weights[0])"
    distance = f"(([a, b]) => a.reduce((d, v, j) => d + Math.abs(v - b[j]) / 2, 0))({weights})"
    assert page.run(f"{apart}.rows[2][9]") == pytest.approx(page.run(distance))


def test_one_token_tells_a_difference_and_no_spread(make_run, show):
    page = show(make_run("one"), make_run("two", variant="merged"), texts=["Be"])
    assert settled(page, f"{ANSWER}.includes('a difference of')")
    assert "NaN" not in page.run("document.body.innerText")


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
    assert page.run("explorer.lossOf(explorer.state.readings[0].trace)") == pytest.approx(
        mlx_attn.load(run.path).loss(TEXT), abs=1e-5
    )


def test_it_writes_as_the_run_does(make_run, show):
    run, text = make_run(facts={"corpus": "tales"}), (2 * TEXT)[:60]  # the context of 64 fills up
    page = show(run, texts=[text])
    steps = load_run(str(run.path)).stream(text, SamplerConfig(temp=0.0), 12)
    written = [step.text for step in steps]
    assert settled(page, f"{ANSWER}.includes({''.join(written[:10])!r})")
    for _ in range(12):
        switch(page, "one")
    assert page.run('document.getElementById("text").value') == text + "".join(written)
