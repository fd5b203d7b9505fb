"""The strip of steps, words with their meaning, and numbers that never go stale."""

import pytest

TEXT = "Ben sees one of them; then it is gone?"


IS_STALE = "document.querySelector('.heads').classList.contains('is-stale')"
UNTIL_MEASURED = """new Promise((done) => {
  const look = () => (document.querySelector("#answers").textContent.includes("Of its 4 heads")
    ? done() : requestAnimationFrame(look));
  look();
})"""


@pytest.fixture
def page(make_run, show):
    """A page whose heads are measured."""
    page = show(make_run(position="alibi"), texts=[TEXT])
    page.run(UNTIL_MEASURED)
    return page


def test_the_steps_have_the_book_s_names_and_sections_and_are_all_in_sight_on_a_laptop(page):
    steps = page.run("""[...document.querySelectorAll("#steps button")].map((button) =>
      [...button.children].map((child) => child.textContent))""")
    assert [place for place, *_ in steps] == [str(at) for at in range(1, 10)]
    assert {title: (section, name) for _, title, section, name in steps} == {
        "x": ("3.3", "inputs"),
        "q, k, v": ("3.4", "queries, keys, values"),
        "score": ("3.4", "attn_scores"),
        "mask": ("3.5", "masked"),
        "softmax": ("3.5", "attn_weights"),
        "weighted sum": ("3.5", "context_vec"),
        "concat, out_proj": ("3.6", "context_vec"),
        "y, residual": ("4.4", "shortcut"),
        "next token": ("4.6", "logits"),
    }
    assert page.run("document.getElementById('steps').scrollWidth") <= 1280


def test_a_step_of_the_strip_is_chosen_with_a_click_and_with_arrows(page):
    page.run('document.querySelectorAll("#steps button")[2].click()')
    title = "document.querySelector('.picture h3').textContent"
    assert page.run(title).startswith("3. score")
    page.run('document.querySelectorAll("#steps button")[2].focus()')
    page.press("ArrowRight", 39)
    assert page.run(title).startswith("4. mask")
    page.run('document.querySelectorAll("#steps button")[1].click()')
    panels = "explorer.panes[0].panels.map((panel) => panel.title)"
    assert page.run(panels) == ["q_h", "k_h", "v_h"]


def test_alibi_is_said_in_words_and_in_numbers(page):
    page.run('document.querySelectorAll("#steps button")[3].click()')
    assert "ALiBi, the farther, the lower" in page.run("document.querySelector('.text').innerText")
    rows = """[...document.querySelectorAll('.numbers tbody tr')].map((row) =>
      [...row.querySelectorAll('td')].map((cell) => cell.innerText.replace('\\u2212', '-')))"""
    for score, alibi, s in (map(float, row) for row in page.run(rows)):
        assert s == pytest.approx(score + alibi, abs=2e-3)


def test_words_of_the_field_have_their_meaning_on_focus(page):
    words = "[...document.querySelectorAll('.term')].map((w) => [w.innerText, w.tabIndex, w.title])"
    found = page.run(words)
    assert {"Loss", "nats", "bits per byte", "Heads"} <= {word for word, _, _ in found}
    assert all(place == 0 and len(meaning) > 40 for _, place, meaning in found)
    page.run("document.querySelector('.term').focus()")
    shown = "getComputedStyle(document.querySelector('.term'), '::after').content"
    assert page.run("document.querySelector('.term').title") in page.run(shown)


def test_while_it_writes_no_number_is_that_of_an_earlier_text(page):
    assert page.run(IS_STALE) is False
    live = """(() => {
      document.getElementById("play").click();
      return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
        const said = document.querySelector("#answers b").textContent;
        const loss = explorer.lossOf(explorer.state.readings[0].trace);
        const busy = document.getElementById("answers").getAttribute("aria-busy");
        document.getElementById("play").click();
        done([Number(said), loss, busy]);
      })));
    })()"""
    said, loss, busy = page.run(live)
    assert said == pytest.approx(loss, abs=6e-4)
    assert busy == "true"
    assert page.run("document.getElementById('answers').getAttribute('aria-busy')") == "false"
