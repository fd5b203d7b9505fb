"""What a person sees and does in the page: keys, switches, widths, colours, silence."""

import time

import pytest

from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import stream_generate
from mlx_attn.text.tokenizers import train_tokenizer

TEXT = "Ben sees one of them; then it is gone?"


def settled(page, expression: str, expected: object = True):
    """The value of an expression, once it is what is expected or two seconds have passed."""
    end = time.monotonic() + 2
    while (found := page.run(expression)) != expected and time.monotonic() < end:
        pass
    return found


def switch(page, name: str) -> None:
    page.run(f'document.getElementById("{name}").click()')


EFFECT = 'document.getElementById("effect").textContent'
APART = 'document.getElementById("apart").textContent'
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
    heading = page.run('document.querySelector("h1").textContent')
    assert heading.startswith("What does run attend to")
    page.run("""(() => {
      const script = document.createElement("script");
      script.textContent = "globalThis.intruder = true";
      document.body.append(script);
    })()""")
    assert page.run("globalThis.intruder") is None


def test_the_lines_that_compute_a_step_are_marked(page):
    marked = {}
    for step in range(9):
        page.run(f'document.querySelectorAll("#steps button")[{step}].click()')
        found = '[...document.querySelectorAll(".sources mark")].map((line) => line.textContent)'
        marked[step] = " ".join(page.run(found))
    assert "x = x + attention(norm1(x))" in marked[0]
    assert "scores = (rows @ k.swapaxes(2, 3))" in marked[2]
    assert "masked = scores + self.mask(places)" in marked[3]
    assert "self.maps.mixing.apply(self, masked" in marked[4]
    assert "return (rows @ v)" in marked[5]
    assert "return x + feed_forward(norm2(x))" in marked[7]


def test_the_last_step_shows_the_lines_that_make_logits(page):
    page.run('document.querySelectorAll("#steps button")[8].click()')
    assert "self.final_norm(x)" in page.run('document.querySelector(".sources").textContent')


def test_a_picture_says_what_its_colours_are(page):
    legend = "document.querySelector('.legend').textContent"
    assert "weight 1, paler is less" in page.run(legend)
    page.run('document.querySelectorAll("#steps button")[3].click()')
    assert "blank is minus infinity" in page.run(legend)
    switch(page, "mask")
    assert "minus infinity" not in page.run(legend)


@pytest.mark.parametrize("width", [400, 700, 1000, 1280, 1600])
def test_no_width_scrolls_sideways_or_cuts_a_line_of_source(width, make_run, show):
    page = show(make_run(), texts=[TEXT], width=width)
    assert page.run("document.documentElement.scrollWidth") == width
    for step in range(9):
        page.run(f'document.querySelectorAll("#steps button")[{step}].click()')
        cut = "[...document.querySelectorAll('pre')].filter((p) => p.scrollWidth > p.clientWidth)"
        assert page.run(f"{cut}.length") == 0


def test_the_text_that_is_shown_is_marked_among_the_examples(page):
    pressed = "[...document.querySelectorAll('#texts [aria-pressed=true]')].map((b) => b.innerText)"
    assert page.run(pressed) == ["text 1"]
    page.run('document.querySelectorAll("#texts button")[1].click()')
    assert page.run(pressed) == ["text 2"]
    page.run('document.getElementById("one").click()')
    assert page.run(pressed) == []


@pytest.mark.parametrize("name", ["mask", "positions", "projection", "off", "scoreless"])
def test_a_switch_changes_the_loss_at_once_and_back(name, page):
    before = page.run("explorer.mean(explorer.losses(explorer.state.readings[0].trace))")
    switch(page, name)
    assert "→" in page.run(EFFECT)
    page.run('document.getElementById("restore").click()')
    assert page.run("explorer.mean(explorer.losses(explorer.state.readings[0].trace))") == before
    assert page.run(EFFECT).startswith("nothing off")


def test_a_sharper_temperature_makes_a_map_steeper(page):
    page.run("document.querySelector('.head').click()")
    largest = "Math.max(...explorer.state.readings[0].trace.blocks[0][5].weights[0])"
    before = page.run(largest)
    page.run("""document.getElementById("temperature").value = -2,
      document.getElementById("temperature").dispatchEvent(new Event("input"))""")
    assert page.run(largest) > before


def test_it_goes_on_as_the_model_does(make_run, show):
    run = make_run()
    page = show(run, texts=[TEXT])
    for _ in range(12):
        page.run('document.getElementById("one").click()')
    model, tokenizer = run.load_model(), run.load_tokenizer()
    pieces = stream_generate(model, tokenizer, TEXT, SamplerConfig(temp=0.0), max_tokens=12)
    written = page.run('document.getElementById("text").value')
    assert written == TEXT + "".join(piece.text for piece in pieces)


def test_the_same_tokens_with_the_same_edits_are_not_computed_again(page):
    same = page.run("""(() => {
      const [model] = explorer.models, edits = explorer.intact();
      const ids = model.tokenizer.encode("Ben sees one of them");
      const made = model.trace(ids, edits);
      const others = [model.trace([...ids], edits, made), model.trace([...ids, 1], edits, made)];
      return others.map((trace) => trace === made);
    })()""")
    assert same == [True, False]


def test_heads_are_measured_while_the_page_obeys(page):
    worths = "explorer.state.readings[0].worths.length"
    assert settled(page, worths, 4) == 4
    at_once = f"""(() => {{
      document.getElementById("text").value = "Ann has";
      document.getElementById("text").dispatchEvent(new Event("input"));
      return {worths};
    }})()"""
    assert page.run(at_once) == 0
    assert settled(page, worths, 4) == 4


def test_a_text_longer_than_the_context_goes_on_from_its_last_half(page):
    page.run('for (let i = 0; i < 40; i++) document.getElementById("one").click()')
    assert page.run("explorer.state.readings[0].tokens.length") <= 64
    assert "reads the last" in page.run('document.querySelector(".reading").textContent')


def test_a_text_that_the_tokenizer_lacks_is_refused_in_words(page):
    page.run("""document.getElementById("text").value = "Ann § é",
      document.getElementById("text").dispatchEvent(new Event("input"))""")
    failure = page.run('document.getElementById("failure").textContent')
    assert '"§", "é"' in failure


def test_arrow_keys_move_between_tokens_and_heads(page):
    page.run('document.querySelector(".tokens .from").focus()')
    page.press("ArrowLeft", 37)
    page.press("ArrowLeft", 37)
    assert page.run("explorer.state.token") == len(TEXT) - 3
    page.run("document.querySelector('.heads [aria-pressed=\"true\"]').focus()")
    page.press("ArrowRight", 39)
    page.press("ArrowDown", 40)
    assert page.run("[explorer.state.layer, explorer.state.head]") == [1, 1]
    name = "document.activeElement.getAttribute('aria-label').slice(0, 39)"
    assert settled(page, name, expected := "layer 1, head 1, without it the loss is") == expected


def test_everything_that_acts_has_a_name(page):
    settled(page, f"{ANSWER}.includes('Of its 4 heads')")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    acting = {"button", "slider", "checkbox", "combobox", "textbox", "img", "link"}
    nameless = [
        node
        for node in tree
        if node.get("role", {}).get("value") in acting
        and not node["ignored"]
        and not node.get("name", {}).get("value", "").strip()
    ]
    assert nameless == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_on_light_and_on_dark(dark, make_run, show, luminance):
    page = show(make_run(), texts=[TEXT], dark=dark)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    ground = luminance(page.run(style.format("body", "backgroundColor")))
    for selector in ("body", ".facts", ".formula", ".hint"):
        ink = luminance(page.run(style.format(selector, "color")))
        lighter, darker = max(ink, ground), min(ink, ground)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, selector


def test_every_picture_is_drawn(page):
    found = page.run("""[...document.querySelectorAll("canvas")].map((canvas) => {
      const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return image.data.some((value) => value > 0);
    })""")
    assert len(found) == 1 + 2 * 2
    assert all(found)


def test_a_matrix_shows_each_of_its_numbers(page):
    page.run('document.querySelector(".matrices").open = true')
    assert settled(page, 'document.querySelectorAll(".matrix").length', 2) == 2
    found = page.run("""(() => {
      const canvas = document.querySelector(".matrix"), box = canvas.getBoundingClientRect();
      const corner = { clientX: box.x + box.width * 0.99, clientY: box.y + box.height * 0.01 };
      canvas.dispatchEvent(new PointerEvent("pointermove", corner));
      return [canvas.width, canvas.height, canvas.nextElementSibling.textContent];
    })()""")
    corner = page.run(
        "explorer.models[0].layers[explorer.state.layer].scoreMatrix(explorer.state.head)[0][15]"
    )
    assert found[:2] == [16, 16]
    assert found[2].startswith("row 0, column 15: ")
    said = float(found[2].rpartition(" ")[2].replace("\u2212", "-"))
    assert said == pytest.approx(corner, abs=6e-4)


def test_markup_in_a_text_stays_text(make_run, show):
    text = "</script><img src=x onerror=alert(1)>"
    run = make_run(tokenizer=train_tokenizer("byte", ""))
    page = show(run, texts=[text])
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run('document.getElementById("text").value') == text


def test_two_runs_read_one_text_and_a_run_does_not_differ_from_itself(make_run, show):
    page = show(make_run("one"), make_run("two", variant="merged"), texts=[TEXT])
    assert settled(page, f"{APART}.includes('two predicts')")
    assert page.run("document.querySelectorAll('.pane').length") == 2
    switch(page, "off")
    assert page.run(EFFECT).count("→") == 2
    page = show(make_run("one"), make_run("one"), texts=[TEXT])
    assert page.run("Math.max(...explorer.apart.rows.flat())") == 0


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
    page.run('document.querySelectorAll("#apart .tokens button")[9].click()')
    assert page.run("explorer.state.token") == 8
    page.run('document.querySelectorAll("#apart .tokens button")[9].focus()')
    page.press("ArrowRight", 39)
    assert page.run("explorer.state.token") == 9
    told = f"/This text does not tell|predicts this text better than/.test({ANSWER})"
    assert settled(page, told)
    assert page.run('document.querySelector("#apart .pair figcaption").textContent') == (
        "Layer 0, head 0: weights of one minus those of two"
    )


def test_two_runs_may_have_tokenizers_and_sizes_of_their_own(make_run, show):
    other = make_run("bytes", train_tokenizer("byte", ""), n_layers=1, n_heads=4)
    page = show(make_run("letters"), other, texts=[TEXT])
    page.run('document.querySelectorAll(".head")[3].click()')
    page.run('document.getElementById("one").click()')
    assert page.said == []
    assert page.run('document.getElementById("apart").hidden')
    assert settled(page, f"{ANSWER}.includes('bytes continues with')")


@pytest.mark.slow  # a figure of a machine with nothing else to do
def test_it_writes_ten_tokens_a_second_at_least(make_run, show):
    page = show(make_run(preset="tiny", n_heads=4, emb_dim=128, context_length=160), texts=[TEXT])
    page.run('document.getElementById("play").click()')
    start = page.run("explorer.state.readings[0].given")
    seconds = page.run("new Promise((done) => setTimeout(done, 1500)).then(() => 1.5)")
    page.run('document.getElementById("play").click()')
    assert (page.run("explorer.state.readings[0].given") - start) / seconds > 10
