"""The page in a browser: what people see when they point, click, type and share a link.

`browse` (tests/conftest.py) acts on it as a person would.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlx_attn.probe.page import FULL, render_page
from mlx_attn.text.characters import ByteTokenizer

WORDS = [b"<b>bold</b>", b" the", b" cat", b"\n", b"&amp;", "\u202e龍".encode(), b'"quote"']


class WordTokenizer(ByteTokenizer):
    """Tokens are words, some of which are hard to show."""

    def token_bytes(self, token):
        return WORDS[token.__index__() % len(WORDS)]


@pytest.fixture
def look(found, browse, monkeypatch) -> Callable[..., Any]:
    """What a script finds in the page of a probe."""

    def run(script: str, fragment: str = "", probed: Any = None, quiet: bool = True) -> Any:
        # Figures take their time, and play no part in what is pointed at.
        monkeypatch.setattr("mlx_attn.probe.page._figures", lambda found: [])
        facts = {"name": "a <i>run</i>", "facts": "standard", "averaged_over": "While it reads."}
        page = render_page(probed or found(), WordTokenizer(), facts)
        return browse(page, script, fragment, quiet=quiet)

    return run


def test_pointing_at_a_token_shows_where_every_head_looks(look, found):
    probed = found()
    rows = look(
        """point(all("#tokens button")[9]);
        const rows = all("#looks tbody tr").map((row) => row.textContent);
        return [from(), $("#summary").textContent, rows];""",
        probed=probed,
    )
    assert rows[0] == 9
    assert rows[1].startswith("Layer 0, head 0, from token 9")
    for head, row in enumerate(rows[2]):
        weights = np.rint(FULL * np.sqrt(probed.maps[0, 0, head, 9])) ** 2 / FULL**2
        assert row.startswith(f"head {head}")
        assert f" {round(100 * weights.max())} %" in row


def test_colours_of_the_text_are_the_weights_of_the_chosen_head(look, found):
    probed = found()
    shades = look(
        "return all('#tokens button').map((b) => Number(b.style.getPropertyValue('--weight')));",
        "#token=7&layer=1&head=2",
        probed=probed,
    )
    np.testing.assert_allclose(shades, np.sqrt(probed.maps[1, 0, 2, 7]), atol=0.5 / FULL + 1e-6)


def test_maps_are_drawn_with_their_weights(look, found):
    probed = found()
    alphas = look(
        """const canvas = $('.thumbs canvas[data-layer="1"][data-head="1"]');
        const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return [...image.data].filter((_, i) => i % 4 === 3);""",
        probed=probed,
    )
    drawn = np.array(alphas).reshape(12, 12) / 255
    np.testing.assert_allclose(drawn, np.sqrt(probed.maps[1, 0, 1]), atol=0.01)


def test_a_click_stays_and_pointing_elsewhere_is_a_glance(look):
    steps = look(
        """const tokens = all("#tokens button"), steps = [];
        tokens[3].click(); steps.push(from());
        point(tokens[8]); steps.push(from());
        leave($("#tokens")); steps.push(from());
        return [steps, view.location.hash];"""
    )
    assert steps == [[3, 8, 3], "#token=3&layer=0&head=0"]


def test_everything_is_reached_with_the_keyboard(look):
    found = look(
        """const tokens = $("#tokens"), maps = $("#maps"), steps = [];
        const chosen = () => $('.thumbs [aria-pressed="true"]').getAttribute("aria-label");
        press(tokens, "Home"); steps.push(from());
        press(tokens, "ArrowRight"); press(tokens, "ArrowRight"); steps.push(from());
        press(tokens, "ArrowLeft"); press(tokens, "End"); steps.push(from());
        press(maps, "ArrowDown"); press(maps, "ArrowRight");
        const tabs = ["#tokens", "#maps"].map((part) => all(part + ' [tabindex="0"]').length);
        return [steps, chosen(), tabs, page.activeElement.getAttribute("aria-label")];"""
    )
    assert found[0] == [0, 2, 11]
    assert found[1].startswith("layer 1, head 1. Entropy ")
    assert found[2] == [1, 1]
    assert found[3] == found[1]


def test_an_address_leads_back_to_what_it_was_copied_from(look, found):
    found = look(
        """const text = $('#texts [aria-pressed="true"]').textContent;
        return [from(), $("#chosen-heading").textContent, text, page.documentElement.dataset.theme];
        """,
        "#text=1&token=4&layer=1&head=2&theme=dark",
        probed=found(texts=2),
    )
    assert found == [4, "Layer 1, head 2", "text 2", "dark"]


def test_an_address_out_of_range_leads_to_what_is_nearest(look):
    found = look(
        """return [from(), $("#chosen-heading").textContent];""", "#token=99&layer=-1&head=x"
    )
    assert found == [11, "Layer 0, head 0"]


def test_another_text_is_shown_with_its_own_maps(look, found):
    probed = found(texts=2)
    shades = look(
        """all("#texts button")[1].click(); await settled();
        return all("#tokens button").map((b) => Number(b.style.getPropertyValue("--weight")));""",
        "#token=11",
        probed=probed,
    )
    np.testing.assert_allclose(shades, np.sqrt(probed.maps[0, 1, 0, 11]), atol=0.5 / FULL + 1e-6)


def test_markup_in_the_text_is_shown_and_not_obeyed(look):
    found = look(
        """point(all("#tokens button")[11]);
        return [all("b, i, img").length, all("script").length, $("h1").textContent,
        all("#tokens bdi").map((t) => t.textContent)];"""
    )
    bold, scripts, heading, tokens = found
    assert (bold, scripts, heading) == (0, 2, "What do the heads of a <i>run</i> attend to?")
    assert {"<b>bold</b>", "&amp;", "⏎", "\\u202e龍"} & set(tokens)
    assert set(tokens) <= {"<b>bold</b>", " the", " cat", "⏎", "&amp;", "\\u202e龍", '"quote"'}


def test_a_script_from_elsewhere_does_not_run(look):
    ran = look(
        """const added = page.createElement("script");
        added.textContent = "window.wasRun = true"; page.body.append(added);
        $("h1").innerHTML = '<img src="data:," onerror="window.wasRun = true">';
        await settled(); return view.wasRun === true;""",
        quiet=False,
    )
    assert ran is False


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_light_and_in_dark(look, luminance, theme):
    colours = look(
        """const of = (s, key) => view.getComputedStyle($(s))[key];
        return [of("body", "color"), of(".hint", "color"), of("body", "backgroundColor")];""",
        f"#theme={theme}",
    )
    ink, quiet, ground = map(luminance, colours)
    assert (ground > 0.5) == (theme == "light")
    for colour in (ink, quiet):
        assert (max(colour, ground) + 0.05) / (min(colour, ground) + 0.05) > 4.5


@pytest.fixture(scope="module")
def drawn(found) -> str:
    """A page with its figures, of twelve heads."""
    probed = found(n_heads=12, emb_dim=24)
    return render_page(
        probed,
        WordTokenizer(),
        {"name": "a run", "facts": "standard", "averaged_over": "It reads."},
    )


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_as_wide_as_the_window(browse, drawn, width):
    assert browse(drawn, "return page.documentElement.scrollWidth;", width=width) <= width


def test_what_has_no_words_has_a_text_alternative(browse, drawn):
    nameless = browse(
        drawn,
        """const named = (e) => e.closest("[aria-hidden], [aria-label], [aria-labelledby]");
        return all("canvas, svg, button, section, [role]").filter((e) => !named(e)).length;""",
    )
    assert nameless == 0
