"""The page as a person uses it: answers, switches, losses, no errors."""

import re
import time

import mlx.core as mx
import numpy as np
import pytest

import mlx_attn
from mlx_attn.activations import run_with_cache
from mlx_attn.convert.model import convert
from mlx_attn.explore.manifest import training_words
from mlx_attn.runs import load_run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.text.corpus import prepare
from mlx_attn.text.tokenizers import train_tokenizer
from tests.explore.test_page_computes_what_mlx_computes import computed, without

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
    assert len(page.requests) == 1  # the page itself


def test_the_arrow_keys_go_on_from_what_was_clicked_where_a_click_gives_no_focus(page):
    page.run("document.querySelectorAll('.tokens button')[3].click()")  # as in Safari
    assert page.run("document.activeElement.dataset.token") == "3"


def test_choosing_a_step_moves_no_other(page):
    places = "[...document.getElementById('steps').children].map((step) => step.offsetLeft)"
    before = page.run(places)
    page.run("document.querySelector('#steps button').click()")
    assert page.run(places) == before


def test_a_slider_as_wide_as_firefox_s_fits_into_320_pixels(make_run, show):
    page = show(make_run(), width=320)
    page.run("document.getElementById('warmth').style.width = '160px'")
    assert page.run("document.scrollingElement.scrollWidth") == 320


def test_below_a_text_too_long_for_two_runs_no_fold_lies_on_another(make_run, show):
    page = show(make_run("one"), make_run("two"), texts=[TEXT * 2])
    page.run("document.querySelectorAll('.every-head').forEach((fold) => (fold.hidden = false))")
    places = page.run("[...document.querySelectorAll('.pane details')].map((f) => f.offsetTop)")
    assert len({*places}) == 3


def test_the_answer_comes_first_and_only_the_page_s_own_script_may_run(page):
    assert settled(page, f"{ANSWER}.startsWith('It continues with')")
    assert page.run('document.querySelector("h1").textContent').startswith("What does run attend")
    page.run("script = Object.assign(document.createElement('script'), { text: 'intruder = 1' })")
    page.run("document.body.append(script)")
    assert page.run("globalThis.intruder") is None


@pytest.mark.parametrize("name", ["mask", "positions", "projection", "off", "scoreless"])
def test_a_switch_changes_the_loss_at_once_and_back(name, page):
    before = page.run("explorer.mean(explorer.losses(explorer.state.readings[0].trace))")
    switch(page, name)
    assert "→" in page.run(EFFECT)
    page.run('document.getElementById("restore").click()')
    assert page.run("explorer.mean(explorer.losses(explorer.state.readings[0].trace))") == before
    assert page.run(EFFECT).startswith("nothing off")


def write(page, text: str) -> None:
    field = "document.getElementById('text')"
    page.run(f"{field}.value = {text!r}; {field}.dispatchEvent(new Event('input'))")


def test_the_number_of_a_head_is_the_loss_without_it(page, make_run):
    run, places = make_run(), [*np.ndindex(2, 2)]
    for text in (TEXT, "Ann has nine"):
        write(page, text)
        before = computed(run, text)[0].mean()
        rises = [computed(run, text, without(*place))[0].mean() - before for place in places]
        layer, head = places[np.argmax(rises)]
        told = f"layer {layer}, head {head} most here: +{max(rises):.3f} nats"
        assert settled(page, f"{ANSWER}.includes({told!r})")
        worths = page.run("[...document.querySelectorAll('.worth')].map((w) => w.innerText)")
        assert worths == [f"{rise:+.3f}".replace("-", "\u2212") for rise in rises]
    page.run("document.querySelectorAll('.head')[2].click()")
    switch(page, "off")
    change = f"{rises[2]:+.3f}".replace("-", "\u2212")
    assert page.run(EFFECT) == f"loss {before:.3f} → {before + rises[2]:.3f} ({change})"
    assert page.run("document.querySelectorAll('.is-stale').length") == 0


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


@pytest.mark.parametrize(
    ("text", "new"),
    [("Ben is", 0), ("Ben i", 0), ("Be i", 1), ("Ben o", 1), ("नमस्ते", 0), ("नमस.", 1)],
)
def test_a_word_that_was_never_read_is_told_once_it_is_written(text, new, make_run, show, tmp_path):
    (tmp_path / "text").write_text("Ben is नमस्ते\n" * 9, "utf-8")
    corpus = prepare(str(tmp_path / "text"), "byte", directory=tmp_path)
    run = make_run(tokenizer=corpus.tokenizer, facts={"corpus": "text"})
    page = show(run, texts=[text], words=training_words(run, corpus))
    told = "document.body.innerText.includes('never read')"
    assert settled(page, told, bool(new)) == bool(new)


def test_of_a_long_text_only_new_words_that_are_shown_are_looked_for(make_run, show):
    page = show(make_run(), words=["Ben"])
    page.run("read = 0; encode = TextEncoder.prototype.encode.bind(new TextEncoder())")
    page.run("TextEncoder.prototype.encode = (text) => encode(text, (read += text.length))")
    write(page, "Ann has " * 1000 + "Ben is")
    marked = page.run("[...document.querySelectorAll('.unknown')].map((token) => token.innerText)")
    assert "".join(marked) == "s" + 7 * "Annhas" + "is"
    assert page.run("read") < 99_000


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


def test_markup_characters_of_two_units_and_words_from_right_to_left_stay_text(make_run, show):
    text = "</script><img src=x onerror=alert(1)> אב " + "🦊" * 8
    tokenizer = train_tokenizer("bpe", f"{text}\n" * 9, 400)
    page = show(make_run("<img src=x>", tokenizer=tokenizer), texts=[text])
    assert page.run("document.querySelectorAll('img').length") == 0
    page.run("CanvasRenderingContext2D.prototype.fillText = (text) => (drawn = text)")
    write(page, text)
    assert page.run("drawn") == "🦊" * 8
    told = page.run("document.querySelector('.cell').textContent")
    assert re.match("“\u2068.+\u2069” to “\u2068.+\u2069”: ", told)
    assert page.run('document.getElementById("text").value') == text


def slide(page, name: str, value: float) -> None:
    slider = f"document.getElementById({name!r})"
    page.run(f"{slider}.value = {value}; {slider}.dispatchEvent(new Event('input'))")


def test_a_slider_changes_the_chosen_head_or_every_head(page):
    page.run("document.querySelectorAll('.head')[2].click()")
    slide(page, "rank", 3)
    slide(page, "temperature", 2)
    changed = (
        "Object.entries(explorer.state.edits.heads).map(([h, e]) => [h, e.temperature, e.rank])"
    )
    assert page.run(changed) == [["1.0", 4, 3]]
    switch(page, "every")
    slide(page, "temperature", -1)
    assert sorted(page.run(changed))[2:] == [["1.0", 0.5, 3], ["1.1", 0.5, None]]


def test_with_a_head_off_the_answer_is_what_the_model_without_it_says(page, make_run):
    settled(page, f"{ANSWER}.includes('Of its 4 heads')")
    page.run("document.querySelector('.head').click()")
    switch(page, "off")
    run, edits = make_run(), without(0, 0)
    tokens, model, tokenizer = [], run.load_model(), run.load_tokenizer()
    read = tokenizer.encode(TEXT).tolist()
    for _ in range(10):
        logits, _ = run_with_cache(model, mx.array([read + tokens]), edits)
        tokens.append(logits[0, -1].argmax().item())
    assert settled(page, f"{ANSWER}.includes({tokenizer.decode(tokens)!r})")
    logits, _ = run_with_cache(model, mx.array([read]), edits)
    chance = f"{100 * mx.softmax(logits[0, -1]).max().item():.0f}"
    assert f"Next token: “{tokenizer.decode(tokens[:1])}” ({chance}" in page.run(ANSWER)


LIKES_A_AND_B = """
const model = explorer.models[0], trace = model.trace.bind(model);
model.trace = (tokens, ...more) => {
  const found = trace(tokens, ...more), [a, b] = model.tokenizer.encode("An");
  const likely = new Float32Array(model.config.vocab_size).fill(-99);
  [likely[a], likely[b]] = [0, -1.5 * Math.log(3)];
  return Object.assign(found, { logits: [...found.logits.slice(0, -1), likely] });
};"""


def test_tokens_are_drawn_at_the_temperature_that_is_chosen(page):
    page.run(LIKES_A_AND_B)
    write(page, "A")
    slide(page, "warmth", 1.5)
    for _ in range(40):
        switch(page, "one")
    written = page.run('document.getElementById("text").value')[1:]
    assert 5 < written.count("n") < 16  # 10 are expected
    assert len(written) == 40


@pytest.fixture
def two(make_run, show):
    """A page of two runs, with what each computes."""
    runs = make_run("one"), make_run("two", variant="merged")
    return show(*runs, texts=[TEXT]), *(computed(run, TEXT) for run in runs)


def test_the_losses_of_two_runs_are_compared_token_by_token(two):
    page, (a, _), (b, _) = two
    gaps, names = a - b, np.where(a > b, "two", "one")
    told = [f"{names[i]} predicts it better by {abs(gaps[i]):.3f} nats" for i in range(len(gaps))]
    assert page.run("[...explorer.apart.find('.tokens').children].map((t) => t.title)")[1:] == told
    order = np.argsort(-abs(gaps))[:5]
    largest = "".join(f"“{TEXT[i + 1]}”: {names[i]} by {abs(gaps[i]):.3f}" for i in order)
    won = f"two predicts {(gaps > 0).sum()} of {len(gaps)} tokens better. "
    shown = page.run("explorer.apart.find('.largest').textContent").replace("␣", " ")
    assert shown == f"{won}The largest differences, in nats: {largest}"
    at, gap = TEXT[order[0] + 1], f"{abs(gaps[order[0]]):.3f}"
    assert f"most at “{at}”, which {names[order[0]]} predicts better by {gap}" in page.run(ANSWER)
    page.run("explorer.apart.find('.tokens').children[9].click()")
    assert page.run("explorer.panes[0].context.i") == 8


def test_the_answer_on_two_runs_is_their_mean_difference_with_twice_its_standard_error(two):
    page, (a, _), (b, _) = two
    gaps = a - b
    better, worse = ("two", "one") if gaps.mean() > 0 else ("one", "two")
    by = f"{abs(gaps.mean()):.3f} nats per token (± {2 * gaps.std(ddof=1) / len(gaps) ** 0.5:.3f})"
    assert f"{better} predicts this text better than {worse}, by {by}" in page.run(ANSWER)
    assert f"{a.mean() / np.log(2):.3f} bits per byte" in page.run(ANSWER)


def test_two_runs_that_differ_by_rounding_alone_are_told_and_painted_alike(make_run, show):
    runs = make_run("one"), make_run("two", variant="merged")
    runs[1].save_model(convert(runs[0].load_model(), "merged"))
    page = show(*runs, texts=[TEXT])
    assert settled(page, f"{ANSWER}.startsWith('Both models predict every token of this text')")
    assert page.run("explorer.apart.find('.largest').textContent") == ""
    of_cells = "find('.pair canvas').getContext('2d').getImageData(150, 150, 60, 60).data"
    assert page.run(f"explorer.apart.{of_cells}.every((number) => number === 0)")


def test_the_head_that_differs_most_is_named_and_the_chosen_one_painted(two):
    page, (_, one), (_, other) = two
    names = [f"trf_blocks.{layer}.att.attn_weights" for layer in (0, 1)]
    moved = [np.abs(one[name] - other[name]).sum(-1).mean(-1) / 2 for name in names]  # [layer][H]
    layer, head = np.unravel_index(np.argmax(moved), (2, 2))
    told = f"Layer {layer}, head {head} differs most: it gives {100 * np.max(moved):.0f}\xa0%"
    assert settled(page, f"{ANSWER}.includes({told!r})")
    page.run("explorer.panes[0].choose({ layer: 1, head: 1 })")
    by = float((one[names[1]] - other[names[1]])[1, 9, 2])
    assert page.run("explorer.apart.pair.value(9, 2)") == pytest.approx(by, abs=1e-4)


def test_it_goes_on_with_the_run_that_is_chosen_until_it_is_stopped(two):
    page, *losses_and_made = two
    likeliest = [int(made["logits"][-1].argmax()) for _, made in losses_and_made]
    assert likeliest[0] != likeliest[1]
    page.run("document.getElementById('writer').value = 1")
    switch(page, "play")
    written = "explorer.state.written?.written"
    assert settled(page, f"({written}?.length ?? 0) > 1")
    switch(page, "play")
    assert page.run(f"{written}[0]") == likeliest[1]


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


def test_the_page_says_of_weights_and_offers_as_switches_what_the_layers_have(make_run, show):
    page = show(make_run(pattern="linear,gated-deltanet", position="learned"))
    page.run("document.querySelectorAll('.head')[2].click()")
    said = page.run("document.querySelector('.picture').innerText")
    assert re.search("5. weights.*need not add up to 1.*weight 1\\s*\u2212", said, re.DOTALL)
    disabled = page.run("[...document.querySelectorAll('#switches :disabled')].map((s) => s.id)")
    assert disabled == ["scoreless", "temperature"]
