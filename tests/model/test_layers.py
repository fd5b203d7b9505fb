"""Layers of one model that take turns in their form, or share keys and values; refusals."""

from typing import Any

import mlx.core as mx
import pytest
from make import moved

from mlx_attn.activations import run_with_cache
from mlx_attn.convert.model import convert, fold_norms
from mlx_attn.cost import model_cost
from mlx_attn.errors import ConfigError
from mlx_attn.interop.standard import obstacles
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.plugins import load_plugins, used_plugins
from mlx_attn.training.config import resolve, variant_name

SMALL = {"vocab_size": 20, "context_length": 12, "emb_dim": 16, "n_heads": 2, "n_layers": 4}
THREE_TO_ONE = "deltanet,deltanet,deltanet,standard"
SHARING: dict[str, Any] = {"kv_sharing": 2}


def config(pattern: str = THREE_TO_ONE, **settings) -> GPTConfig:
    return config_from({**SMALL, "position": "alibi", "pattern": pattern, **settings})


def test_the_variants_take_turns_with_the_positions_that_they_need_or_the_model_s():
    layers = [config(n_layers=6).attention(layer) for layer in range(6)]
    forms = {(layer.mixing, layer.position) for layer in layers[:3] + layers[4:]}
    assert forms == {("gated_delta", "none")}
    assert (layers[3].mixing, layers[3].position) == ("softmax", "alibi")
    assert [config("", window=4, global_every=3).attention(i).window for i in (1, 2)] == [4, 0]


def test_every_layer_has_the_cache_of_its_kind():
    settings = config("deltanet,sliding-window,standard,standard", context_length=64)
    window = settings.attention(1).window
    assert [cache.slots for cache in GPT(settings).new_caches()] == [0, window, 64, 64]


@pytest.mark.parametrize(
    ("pattern", "settings", "words"),
    [
        ("", {"n_layers": 0}, "n_layers=0 must be at least 1"),
        ("", {"norm": "batchnorm"}, "norm='batchnorm' must be one of layernorm, rmsnorm"),
        ("", {"hidden_dim": -1}, "hidden_dim=-1"),
        ("", {"n_head": 4}, "unknown setting 'n_head': did you mean 'n_heads'"),
        ("deltanet,standart", {}, "did you mean 'standard'"),
        (THREE_TO_ONE, {"n_layers": 2}, "4 variants for n_layers=2: use more layers"),
        ("local-global,standard", {}, "write sliding-window,standard instead"),
        ("differential,standard", {}, "as many attention maps, and they have: differential 4"),
        ("deltanet,standard", {"output": "none"}, "leave output=none out"),
        ("deltanet,standard", {"window": 4}, "reads no scores, which window=4 hides"),
        ("standard,cross-layer", {}, "write --variant cross-layer instead"),
        ("standard,gated", SHARING, "pattern=standard,gated makes them differ"),
        ("", {"kv_sharing": 5}, "kv_sharing=5: there are only n_layers=4: use more layers"),
        ("", {**SHARING, "output": "exclusive"}, "output=exclusive .* kv_sharing reads another"),
        ("", {"output": "exclusive", "short_conv": "silu"}, "short_conv=silu mixes"),
        ("", {**SHARING, "score": "merged"}, "score=merged computes or caches others: leave one"),
        ("", {**SHARING, "window": 4, "global_every": 2}, "one window, and global_every=2 makes"),
    ],
)
def test_an_impossible_model_and_layers_that_do_not_fit_are_refused_in_one_line(
    pattern, settings, words
):
    with pytest.raises(ConfigError, match=words) as refused:
        config(pattern, **settings)
    assert "\n" not in str(refused.value)


def test_a_pattern_is_stored_with_the_names_of_its_variants_and_names_its_run():
    assert config("DeltaNet, no_query").as_dict()["pattern"] == "deltanet,no-query"
    assert config_from(config().as_dict()) == config()
    settings = {key: value for key, value in config("").as_dict().items() if key != "pattern"}
    assert config_from(settings).pattern == ""
    assert variant_name({"pattern": THREE_TO_ONE}) == "3xdeltanet+standard"


def test_a_variant_above_a_pattern_replaces_it_and_below_it_gives_the_positions():
    assert "pattern" not in resolve({"pattern": THREE_TO_ONE}, {"variant": "merged"}).model
    model = resolve({"variant": "deltanet"}, {"pattern": THREE_TO_ONE}).model
    chosen = (model["mixing"], model["position"], model["pattern"])
    assert chosen == ("softmax", "none", THREE_TO_ONE)
    model = resolve({"variant": "deltanet", "pattern": THREE_TO_ONE, "n_layers": 4}).model
    layers = [config_from({**model, "vocab_size": 9}).attention(i) for i in range(4)]
    assert [layer.position for layer in layers] == ["none"] * 4
    with pytest.raises(ConfigError, match="sets its score: leave score=merged out"):
        resolve({"variant": "merged", "pattern": THREE_TO_ONE, "n_layers": 4}).model_config(9)


def test_a_run_with_a_pattern_asks_for_the_file_of_a_variant_in_it(no_plugins, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from mlx_attn.attention import Variant, register\n"
        "register(Variant(name='mine', output='none', value='key', formula='y', summary='s'))\n"
    )
    load_plugins(file)
    (plugin,) = used_plugins({"pattern": "deltanet,mine"})
    assert plugin["names"] == ["variant=mine"]


@pytest.mark.parametrize(
    ("settings", "obstacle", "words"),
    [
        ({}, f"pattern={THREE_TO_ONE}", "train one variant in all layers"),
        ({"pattern": "", "kv_sharing": 2}, "kv_sharing=2", "leaves some layers without W_key"),
    ],
    ids=["several forms", "shared keys"],
)
def test_conversions_and_exports_refuse_layers_that_differ(settings, obstacle, words):
    model = GPT(config(**settings))
    for change in (lambda: convert(model, "merged"), lambda: fold_norms(model)):
        with pytest.raises(ConfigError, match=words):
            change()
    assert obstacle in obstacles(model.config)


TOKENS = mx.array([[1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1]])


def sharing(**settings: Any) -> GPTConfig:
    return config_from({**SMALL, "n_heads": 4, **SHARING, **settings})


def random_model(**settings: Any) -> GPT:
    mx.random.seed(1)
    return moved(GPT(sharing(**settings)))


def test_only_the_first_layer_of_each_group_has_keys_and_values_of_its_own():
    owns = ["W_key" in block.att and "W_value" in block.att for block in GPT(sharing()).trf_blocks]
    assert owns == [True, False, True, False]


def test_a_layer_reads_the_keys_and_values_of_the_layer_before():
    _, activations = run_with_cache(random_model(position="rope"), TOKENS)
    for name in ("keys", "values"):
        of = [activations[f"trf_blocks.{layer}.att.{name}"] for layer in range(4)]
        assert mx.array_equal(of[0], of[1])
        assert mx.array_equal(of[2], of[3])
        assert not mx.array_equal(of[1], of[2])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position": "rope", "qk_norm": True, "n_kv_heads": 2},
        {"position": "alibi", "window": 4},
        {"kv_sharing": 3, "position": "none", "mixing": "sink", "logits": "temperature"},
    ],
)
def test_decoding_with_caches_is_the_full_pass(settings):
    model = random_model(**settings)
    caches, logits = model.new_caches(), model(TOKENS)
    read = [model(piece, caches) for piece in mx.split(TOKENS, [5, 6], axis=1)]
    assert mx.allclose(mx.concatenate(read, axis=1), logits, atol=1e-4)


def test_two_layers_have_the_cache_of_one():
    shared, apart = (model_cost(sharing(kv_sharing=layers)) for layers in (2, 0))
    assert shared.cache_bytes == apart.cache_bytes / 2
