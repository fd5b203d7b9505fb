"""The page as a file: what is in it, what is not, and how large it is."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

from mlx_attn.probe.page import FULL, label, pack_maps, render_page
from mlx_attn.text.characters import ByteTokenizer

FACTS = {
    "name": "a <i>run</i>",
    "facts": "merged & <b>more</b>",
    "averaged_over": "While it reads.",
}
NASTY = b"</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class NastyTokenizer(ByteTokenizer):
    """Every token is markup."""

    def token_bytes(self, token):
        return NASTY


def page(probed, tokenizer=None) -> str:
    return render_page(probed, tokenizer or ByteTokenizer(), FACTS)


def data(text: str) -> dict:
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def unpack(packed: str, layers: int, heads: int, T: int) -> np.ndarray:
    """What the page's script does, in NumPy."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8)
    maps = np.zeros((layers, heads, T, T))
    rows, columns = np.tril_indices(T)
    maps[..., rows, columns] = (levels.reshape(layers, heads, -1) / FULL) ** 2
    return maps


def test_the_page_asks_for_nothing_outside_itself(page_elements, found):
    elements = page_elements(page(found()))
    assert elements.loaded() == []
    policy = elements.all("meta")[1]["content"]
    assert policy
    assert policy.startswith("default-src 'none'; ")


def test_the_figures_that_hold_pixels_may_be_shown(page_elements, found):
    elements = page_elements(page(found()))
    assert all(
        str(image["xlink:href"]).startswith("data:image/png") for image in elements.all("image")
    )
    assert elements.all("image")
    assert "; img-src data:" in str(elements.all("meta")[1]["content"])


def test_the_question_is_the_title_and_the_answer_follows(no_figures, found):
    text = page(found())
    assert re.search(r"<h1>What do the heads of .* attend to\?</h1>\s*<p class=\"answer\">\w", text)


def test_markup_in_tokens_and_names_is_text(page_elements, no_figures, found):
    text = page(found(), NastyTokenizer())
    elements = page_elements(text)
    assert len(elements.all("script")) == 2
    assert not any(tag in ("i", "b") for tag, _ in elements.found)
    assert not any("onerror" in attributes for _, attributes in elements.found)
    assert "a &lt;i&gt;run&lt;/i&gt;" in text
    assert data(text)["texts"][0]["tokens"][0] == NASTY.decode()


def test_only_the_page_s_own_script_may_run(no_figures, found):
    import hashlib

    text = page(found())
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_maps_come_back_to_within_a_percent(no_figures, found):
    probed = found(tokens=12)
    packed = data(page(probed))["texts"][0]["maps"]
    np.testing.assert_allclose(unpack(packed, 2, 3, 12), probed.maps[:, 0], atol=0.5 / FULL * 2)


def test_every_map_has_a_text_alternative(no_figures, found):
    probed = found()
    summaries = data(page(probed))["summaries"]
    assert np.shape(summaries) == (2, 3)
    assert f"Entropy {probed.statistics.entropy[1, 2]:.2f} nats" in summaries[1][2]


def test_the_numbers_stand_in_the_page_without_a_script(no_figures, found):
    probed = found()
    text = re.sub(r"<script.*?</script>", "", page(probed), flags=re.DOTALL)
    assert f">{probed.scores.effective_rank[1, 1]:.2f}</td>" in text
    assert "<noscript>" in text


def test_one_head_has_no_alignment_to_show(found):
    assert "Alignment" in page(found())
    assert "Alignment" not in page(found(n_heads=1))


@pytest.mark.slow
def test_a_page_of_12_layers_of_12_heads_and_256_tokens_stays_under_5_megabytes(found):
    # Random maps at the spread of scores that compresses worst.
    scores = 1.5 * np.random.default_rng(0).normal(size=(12, 12, 256, 256))
    weights = np.tril(np.exp(scores))
    packed = pack_maps(weights / weights.sum(-1, keepdims=True))
    rest = len(page(found(n_layers=3, n_heads=12, emb_dim=48, tokens=2)))
    assert len(packed) + 4 * rest < 5_000_000


def test_texts_beyond_the_page_s_room_are_left_out(no_figures, found, monkeypatch):
    probed = found(texts=3)
    room = 2 * len(pack_maps(probed.maps[:, 0])) + 50
    assert len(data(page(probed))["texts"]) == 3
    monkeypatch.setattr("mlx_attn.probe.page.MAP_BYTES", room)
    assert len(data(page(probed))["texts"]) == 2
    monkeypatch.setattr("mlx_attn.probe.page.MAP_BYTES", 1)
    assert len(data(page(probed))["texts"]) == 1


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (b" the", " the"),
        (b"\n", "⏎"),
        (b"a\tb", "a⇥b"),
        (b"\x00", "\\x00"),
        (b"\xe2\x82", "\\xe2\\x82"),
        ("\u202e".encode(), "\\u202e"),
        ("龍".encode(), "龍"),
    ],
)
def test_a_token_is_shown_so_that_it_can_be_seen(piece, shown):
    assert label(piece) == shown
