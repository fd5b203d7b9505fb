"""The checks of algebra and cost, on a small model."""

import pytest

from mlx_attn.errors import ConfigError
from mlx_attn_studies import identities

STORY = "the red cat sat on a mat. an old dog sat by the wet door. the cat saw the dog. " * 20


def test_an_unknown_identity_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'merging-costs'"):
        identities.check("merging-cost")


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """Checks a model of a few thousand weights, trained on a short text once for all tests."""
    story = tmp_path_factory.mktemp("text") / "story.txt"
    story.write_text(STORY)
    sizes = {"context_length": 24, "emb_dim": 16, "n_heads": 2, "n_layers": 2, "batch_size": 4}
    recipe = {"steps": 30, "warmup": 2, "eval_every": 0, "optimizer": "adamw"}
    form = {"qkv_bias": True, "position": "learned"}
    small = {"data": str(story), "tokenizer": "char", **sizes, **recipe, **form}
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identities, "SETTINGS", small)
        yield
    forget()


def forget() -> None:
    """Let the next check train its models again."""
    identities._trained.cache_clear()
    identities._both_forms.cache_clear()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("merging-is-exact", {}),
        # head_dim^2 = 64 weights of a query-key and of a value-output pair, 2 heads, 2 layers
        ("weights-can-be-shrunk", {"weights removed": 2 * 2 * 2 * 64}),
        ("key-cache-is-enough", {"cache, times the original": 0.5, "same greedy text": 1}),
        ("key-bias-is-inert", {}),
        ("heads-are-not-a-layout", {}),
        ("merged-learns-another-s", {}),
        ("merged-is-not-symmetric", {}),
        ("merged-has-a-flatter-spectrum", {"head_dim": 8}),
        ("decay-lowers-the-rank", {}),
        ("without-query-costs", {"cache, times separate": 1}),
        (
            "merging-costs",
            {
                "query-key weights, times separate": 6,
                "score multiply-adds, times separate": 12,
                "attention weights, times separate": pytest.approx(3.5, abs=0.01),
            },
        ),
    ],
)
def test_the_algebra_holds(small_model, name, expected):
    found = identities.check(name)
    assert found.holds
    assert {key: found.numbers[key] for key in expected} == expected


def test_two_forms_of_one_model_part_step_by_step(small_model):
    curves = identities.parting_curves(identities.check("merged-learns-another-s").numbers)
    assert [*curves["S"]] == [*range(0, 31, 3)]
    assert [*curves["attention"]] == [*range(3, 31, 3)]
    assert curves["S"][0] < 1e-5 < curves["S"][3] < curves["S"][30]


def test_a_text_of_known_entropy_has_a_floor_and_another_has_none(small_model, monkeypatch):
    assert not identities.check("tales-have-a-floor").holds
    tales = {**identities.SETTINGS, "data": "tales", "steps": 3}
    monkeypatch.setattr(identities, "SETTINGS", tales)
    forget()
    assert identities.check("tales-have-a-floor").holds
    forget()


def test_every_identity_has_a_check():
    assert set(identities.IDENTITIES) == set(identities._CHECKS)


def test_a_bias_that_matters_would_be_noticed(small_model, monkeypatch):
    def with_query_bias(model):
        for block in model.trf_blocks:
            block.att.W_query.bias = block.att.W_query.bias + 1.0
        return logits(model)

    logits = identities._logits
    monkeypatch.setattr(identities, "_logits", with_query_bias)
    assert not identities.check("key-bias-is-inert").holds
