"""What a person sees and does in the page: keys, switches, widths, colours, silence."""

import importlib.util
import time
from pathlib import Path

import pytest

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
    marked = []
    for step in range(9):
        page.run(f'document.querySelectorAll("#steps button")[{step}].click()')
        found = '[...document.querySelectorAll(".sources mark")].map((line) => line.textContent)'
        marked.append(" ".join(page.run(found)))
    assert "x = x + self.drop_shortcut(self.att(self.norm1(x)" in marked[0]
    assert "masked = scores + self.mask(places)" in marked[3]
    assert "return (rows @ v)" in marked[5]
    assert "self.final_norm(x)" in page.run('document.querySelector(".sources").textContent')


def test_a_picture_says_what_its_colours_are(page):
    legend = "document.querySelector('.legend').textContent"
    assert "weight 1, paler is less" in page.run(legend)
    page.run('document.querySelectorAll("#steps button")[3].click()')
    assert "blank is minus infinity" in page.run(legend)
    switch(page, "mask")
    assert "minus infinity" not in page.run(legend)


@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_no_width_scrolls_sideways_or_cuts_a_line_of_source(width, make_run, show):
    page = show(make_run(), texts=[TEXT], width=width)
    assert page.run("document.documentElement.scrollWidth") == width
    for step in range(9):
        page.run(f'document.querySelectorAll("#steps button")[{step}].click()')
        cut = "[...document.querySelectorAll('pre')].filter((p) => p.scrollWidth > p.clientWidth)"
        assert page.run(f"{cut}.length") == 0


@pytest.mark.parametrize("name", ["mask", "positions", "projection", "off", "scoreless"])
def test_a_switch_changes_the_loss_at_once_and_back(name, page):
    before = page.run("explorer.mean(explorer.losses(explorer.state.readings[0].trace))")
    switch(page, name)
    assert "→" in page.run(EFFECT)
    page.run('document.getElementById("restore").click()')
    assert page.run("explorer.mean(explorer.losses(explorer.state.readings[0].trace))") == before
    assert page.run(EFFECT).startswith("nothing off")


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
    nodes = [n for n in tree if not n["ignored"] and n.get("role", {}).get("value") in acting]
    assert len(nodes) > 10
    assert [n for n in nodes if not n.get("name", {}).get("value", "").strip()] == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_on_light_and_on_dark(dark, make_run, show, luminance):
    page = show(make_run(), texts=[TEXT], dark=dark)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    ground = luminance(page.run(style.format("body", "backgroundColor")))
    for selector in ("body", ".facts", ".formula", ".hint"):
        ink = luminance(page.run(style.format(selector, "color")))
        lighter, darker = max(ink, ground), min(ink, ground)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, selector


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


def test_a_run_does_not_differ_from_itself(make_run, show):
    page = show(make_run("one"), make_run("one"), texts=[TEXT])
    assert settled(page, "document.querySelectorAll('.pane').length", 2) == 2
    assert page.run("Math.max(...explorer.apart.rows.flat())") == 0
    switch(page, "off")
    assert page.run(EFFECT).count("→") == 2


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


SCRIPT = Path(__file__).parents[2] / "docs" / "pictures.py"


def test_every_gesture_of_the_readme_s_moving_picture_finds_its_element(make_run, show):
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    assert spec
    assert spec.loader
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    page = show(make_run())
    page.run("new Promise((done) => setTimeout(done, 200))")
    effects = []
    for element, _ in pictures.GESTURES:
        assert all(side > 0 for side in page.run(pictures.PLACE.format(element=element)))
        page.run(f"({element}).click(); new Promise((done) => setTimeout(done, 50))")
        effects.append(page.run('document.getElementById("effect").textContent'))
    assert ["→" in effect for effect in effects] == [False, True, False, True, False]
