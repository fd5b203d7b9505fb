"""Claims about algebra and cost, on a model that is trained for a moment."""

import pytest

from mlx_attn.compare import claim as examinations


@pytest.fixture(autouse=True)
def small_model(monkeypatch, story):
    """Examines a model of a few thousand weights, trained on a short text."""
    small = {
        "data": str(story),
        "tokenizer": "char",
        "context_length": 24,
        "emb_dim": 16,
        "n_heads": 2,
        "n_layers": 2,
        "batch_size": 4,
        "steps": 30,
        "warmup": 2,
        "eval_every": 0,
        "qkv_bias": True,
        "optimizer": "adamw",
    }
    monkeypatch.setattr(examinations, "_SETTINGS", small)
    examinations._trained.cache_clear()
    yield
    examinations._trained.cache_clear()


def test_merging_is_exact():
    numbers, holds = examinations.merging_is_exact()
    assert holds
    assert 0 <= numbers["largest logit difference"] <= 1e-5 * numbers["largest logit"]


def test_shrinking_removes_weights_and_nothing_else():
    numbers, holds = examinations.shrinking_is_exact()
    assert holds
    # head_dim^2 = 64 weights of a query-key and of a value-output pair, 2 heads, 2 layers
    assert numbers["weights removed"] == 2 * 2 * 2 * 64


def test_half_the_cache_writes_the_same_text():
    numbers, holds = examinations.key_cache_is_enough()
    assert holds
    assert numbers["cache, times the original"] == 0.5


def test_the_bias_of_the_key_changes_nothing():
    numbers, holds = examinations.key_bias_is_inert()
    assert holds
    assert numbers["gradient of b_key, times that of b_query"] < 1e-4


def test_a_bias_that_matters_would_be_noticed(monkeypatch):
    def with_query_bias(model, change):
        moved = examinations.GPT(model.config)
        moved.update(model.parameters())
        for block in moved.trf_blocks:
            block.att.W_query.bias = block.att.W_query.bias + change
        moved.eval()
        return moved

    monkeypatch.setattr(examinations, "_with_key_bias", with_query_bias)
    _, holds = examinations.key_bias_is_inert()
    assert not holds


def test_merging_costs_what_counting_says():
    numbers, holds = examinations.merging_costs()
    assert holds
    assert numbers["query-key weights, times separate"] == 6
    assert numbers["score multiply-adds, times separate"] == 12
    assert numbers["attention weights, times separate"] == pytest.approx(3.5, abs=0.01)
