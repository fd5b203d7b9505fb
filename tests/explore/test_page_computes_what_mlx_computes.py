"""Token ids, logits and losses of the page against MLX: variants, positions, tokenizers, edits."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.activations import run_with_cache
from mlx_attn.arrays import named_arrays
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.convert.circuits import qk_circuit
from mlx_attn.plugins import load_plugins
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.foreign import ForeignTokenizer
from mlx_attn.text.tokenizers import Tokenizer, train_tokenizer
from tests.text.tokenizers.test_laws import HARD

TEXT = "Ben has one red kite; then nine?"
BEYOND_WINDOWS = "Ann has nine red kites.\nBen sees one of them; then it is gone?"
LONG = "Ann sees nine red kites. Ben has one; it is gone, then.\n" * 40
TOLERANCE = 1e-4


def trace(text: str, edits: str = "{}", at: int = 0) -> str:
    """An expression for the ids, logits and loss of a text in one of the page's models."""
    return f"""(() => {{
      const model = explorer.models[{at}];
      const ids = model.tokenizer.encode({json.dumps(text)});
      const made = model.trace(ids, {{ ...explorer.intact(), ...({edits}) }});
      const loss = explorer.mean(explorer.losses(made));
      return {{ ids, loss, logits: made.logits.map((row) => Array.from(row)) }};
    }})()"""


def largest_difference(run, page, text=TEXT, edits: str = "{}", model=None, at: int = 0) -> float:
    """Between the logits of MLX and of one of the page's models, for each token of the text."""
    ids = run.load_tokenizer().encode(text)
    found = page.run(trace(text, edits, at))
    assert found["ids"] == ids.tolist()
    expected = (model or run.load_model())(mx.array(ids)[None])[0]
    return np.abs(np.array(found["logits"]) - np.array(expected)).max()


SETTINGS = {
    "learned positions": {"position": "learned"},
    "no positions": {"position": "none"},
    "rope": {"position": "rope"},
    "rope of the full width": {"position": "rope", "variant": "merged"},
    "a window": {"window": 5},
    "windows, and every second layer sees all": {"window": 5, "global_every": 2},
    "queries that share a key": {"n_heads": 4, "n_kv_heads": 2},
    "a narrow latent": {"variant": "mla", "latent_dim": 6, "position": "learned"},
    "normalised queries and keys": {"qk_norm": True, "position": "rope"},
    "the book's block": {"block": "book"},
    "a tied head": {"tied_head": True},
    "several hooks": {"logits": "temperature+self_mask"},
    "convolved queries, keys and values": {"short_conv": "linear"},
    "layers of two forms": {"pattern": "deltanet,standard"},
    "layers that share rotated keys": {"kv_sharing": 2, "position": "rope"},
    "exclusive with shared values": {"variant": "exclusive", "n_heads": 4, "n_kv_heads": 2},
}
MODELS = {variant: {"variant": variant} for variant in VARIANTS} | SETTINGS


# Of each kind of map, mixing, logits and layer one; the slow suite has all.
KINDS = (
    "standard",
    "merged-both",
    "differential",
    "mla",
    "gated-deltanet",
    "path",
    "selective",
    "forgetting",
    "talking-heads",
    "value-residual",
    "windows, and every second layer sees all",
    "queries that share a key",
    "the book's block",
    "layers of two forms",
    "layers that share rotated keys",
)


@pytest.mark.parametrize(
    "names",
    [KINDS, pytest.param(tuple(MODELS), marks=pytest.mark.slow)],
    ids=["one of each kind", "all variants and settings"],
)
def test_all_models_of_one_page(names, make_run, show):
    runs = [make_run(**MODELS[name]) for name in names]
    page = show(*runs)
    apart = [largest_difference(run, page, BEYOND_WINDOWS, at=at) for at, run in enumerate(runs)]
    assert {name: by for name, by in zip(names, apart, strict=True) if not by < TOLERANCE} == {}


PLUGINS = {
    "temperature.py": {"logits": "sharpness"},
    "talking_heads.py": {"variant": "talk"},
    "differential.py": {"variant": "diff"},
}


@pytest.mark.parametrize("file", PLUGINS)
def test_a_plugin_s_model_runs_in_the_page(file, no_plugins, make_run, show):
    load_plugins(Path(__file__).parents[2] / "examples" / file)
    run = make_run(**PLUGINS[file])
    page = show(run)
    assert largest_difference(run, page) < TOLERANCE
    assert f'{file}", "line"' in page.run("document.getElementById('data').textContent")


def test_numbers_that_are_not_finite_are_no_result(make_run, show):
    edit = '{ heads: { "0.0": { off: false, scores: true, temperature: NaN, rank: Infinity } } }'
    with pytest.raises(AssertionError, match="not finite"):
        show(make_run()).run(trace(TEXT, edit))


def test_float16_is_the_rounded_model(make_run, show):
    run = make_run()
    model = run.load_model()
    model.set_dtype(mx.float16)
    model.set_dtype(mx.float32)
    assert largest_difference(run, show(run, dtype="float16"), model=model) < TOLERANCE


# Tokenizers.

MERGES = "#version: 0.2\nh e\nĠ t\nĠt he\ne r\nr e\ni n\nĊ Ċ\n1 2\n' s\nà ©"
ODD = [
    *HARD,
    "café naïve Straße ﬁ Å ½ ² ไทย",
    "it's we'll I'd 'tis THE 12.5 x_1 ---",
    "\u2003\u200b",
    "kite" * 30,
    "the <|endoftext|>",
]


def small_tokenizer(kind: str) -> Tokenizer:
    if kind == "symbols":
        return SymbolTokenizer(["3", "1", "2"])
    if not kind.startswith("gpt2"):
        return train_tokenizer(kind, LONG + "the café 日本 kites' ½", 420)
    tokenizer = ForeignTokenizer.from_merges(MERGES)
    if kind == "gpt2":
        return tokenizer
    ids = json.loads(tokenizer.content)["model"]["vocab"]
    last_first = {token: (number + 1) % len(ids) for token, number in ids.items()}
    return ForeignTokenizer.from_merges(MERGES, last_first)


@pytest.mark.parametrize(
    "kind", ["byte", "bpe", "unigram", "gpt2", "gpt2, end of text first", "symbols"]
)
def test_every_tokenizer_reads_odd_texts_as_python_does(kind, make_run, show):
    tokenizer = small_tokenizer(kind)
    page = show(make_run(tokenizer=tokenizer))
    for text in ["2 1", "\n3  1\n2"] if kind == "symbols" else ODD:
        code = f"explorer.models[0].tokenizer.encode({json.dumps(text)})"
        assert page.run(code) == tokenizer.encode(text).tolist(), text


# Switches.


def computed(run, text=TEXT, edits=None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The loss of each token but the first, and every activation of the pass."""
    tokens = run.load_tokenizer().encode(text)
    logits, made = run_with_cache(run.load_model(), mx.array(tokens)[None], edits)
    logs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))[0]
    losses = -logs[np.arange(len(tokens) - 1), tokens[1:]]
    return losses, {name: np.array(value)[0] for name, value in made.items()}


def without(layer: int, head: int, name: str = "context_vec", factor: float = 0.0):
    """The edit that multiplies the output of one head, or its other numbers, by a factor."""

    def edit(heads: mx.array) -> mx.array:
        chosen = mx.arange(heads.shape[1])[:, None, None] == head
        return mx.where(chosen, factor * heads, heads)

    return {f"trf_blocks.{layer}.att.{name}": edit}


@pytest.mark.parametrize("variant", ["standard", "differential"])
@pytest.mark.parametrize(
    ("change", "name", "factor"),
    [
        ("off: true", "context_vec", 0.0),
        ("scores: false", "raw_scores", 0.0),
        ("temperature: 4", "masked", 0.25),
    ],
)
def test_a_switch_of_a_head_multiplies_its_numbers(variant, change, name, factor, make_run, show):
    run = make_run(variant=variant)
    page = show(run)
    intact = "off: false, scores: true, temperature: 1, rank: Infinity"
    for layer, head in [(0, 1), (1, 0)]:
        edits = f'{{ heads: {{ "{layer}.{head}": {{ {intact}, {change} }} }} }}'
        losses, _ = computed(run, edits=without(layer, head, name, factor))
        assert page.run(trace(TEXT, edits))["loss"] == pytest.approx(losses.mean(), abs=TOLERANCE)


def test_without_a_mask_every_token_sees_all(make_run, show):
    run = make_run(position="learned")
    model = run.load_model()
    for block in model.trf_blocks:
        block.att.mask = lambda *_, **__: mx.zeros((1, 1))
    assert largest_difference(run, show(run), edits="{ mask: false }", model=model) < TOLERANCE


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_without_positions_the_model_is_one_that_has_none(position, make_run, show):
    run = make_run(position=position)
    model, bare = run.load_model(), make_run(position="none").load_model()
    arrays = {name: w for name, w in named_arrays(model).items() if "pos_emb" not in name}
    bare.load_weights(list(arrays.items()))
    assert largest_difference(run, show(run), edits="{ positions: false }", model=bare) < TOLERANCE


def test_without_out_proj_heads_are_used_as_they_are(make_run, show):
    run = make_run()
    model = run.load_model()
    for block in model.trf_blocks:
        block.att.out_proj = lambda heads: heads
    edits = "{ projection: false }"
    assert largest_difference(run, show(run), edits=edits, model=model) < TOLERANCE


@pytest.mark.parametrize("variant", ["standard", "mla"])
def test_a_truncated_rank_is_the_nearest_matrix_of_that_rank(variant, make_run, show):
    run = make_run(variant=variant, position="learned")
    page = show(run)
    S = qk_circuit(run.load_model().trf_blocks[0].att).products[0]
    left, values, right = np.linalg.svd(S)
    nearest = left[:, :3] * values[:3] @ right[:3]
    read = """(() => {
      const [model] = explorer.models, edits = explorer.intact();
      edits.heads["0.0"] = { off: false, scores: true, temperature: 1, rank: 3 };
      const [rows] = model.trace(model.tokenizer.encode("Ben has one red kite"), edits).blocks;
      const numbers = (of) => rows.map((row) => Array.from(of(row)));
      return { x: numbers((row) => row.x), scores: numbers((row) => row.scores[0]) };
    })()"""
    found = page.run(read)
    x = np.array(found["x"])
    expected = run.load_model().config.scale * x @ nearest @ x.T
    for i, scores in enumerate(found["scores"]):
        assert scores == pytest.approx(expected[i, : i + 1], abs=TOLERANCE)
