"""A pattern of variants gives the layers of one model different forms of attention."""

import mlx.core as mx
import pytest

from mlx_attn.attention.cache import KVCache, RotatingKVCache, StateCache
from mlx_attn.convert.model import convert, fold_norms
from mlx_attn.cost import cache_bytes
from mlx_attn.errors import ConfigError
from mlx_attn.interop.standard import obstacles
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.plugins import load_plugins, unload_plugins, used_plugins
from mlx_attn.training.config import resolve, variant_name

SMALL = {"vocab_size": 20, "context_length": 12, "emb_dim": 16, "n_heads": 2, "n_layers": 4}
THREE_TO_ONE = "deltanet,deltanet,deltanet,standard"


def config(pattern: str = THREE_TO_ONE, **settings) -> GPTConfig:
    return config_from({**SMALL, "position": "alibi", "pattern": pattern, **settings})


def test_the_variants_take_turns_with_the_positions_that_they_need_or_the_model_s():
    layers = [config(n_layers=6).attention(layer) for layer in range(6)]
    forms = {(layer.mixing, layer.position) for layer in layers[:3] + layers[4:]}
    assert forms == {("gated_delta", "none")}
    assert (layers[3].mixing, layers[3].position) == ("softmax", "alibi")


def test_every_layer_has_the_cache_of_its_kind_and_its_bytes_are_counted():
    settings = config("deltanet,sliding-window,standard,standard", context_length=64)
    model, tokens = GPT(settings), mx.zeros((1, 64), mx.int32)
    caches = model.new_caches()
    assert [type(cache) for cache in caches] == [StateCache, RotatingKVCache, KVCache, KVCache]
    mx.eval(model(tokens, caches))
    assert cache_bytes(settings, 64, 4) == sum(b.nbytes for cache in caches for b in cache.buffers)


@pytest.mark.parametrize(
    ("pattern", "settings", "words"),
    [
        ("deltanet,standart", {}, "did you mean 'standard'"),
        (THREE_TO_ONE, {"n_layers": 2}, "4 variants for n_layers=2: use more layers"),
        ("local-global,standard", {}, "write sliding-window,standard instead"),
        ("differential,standard", {}, "as many attention maps, and they have: differential 4"),
        ("deltanet,standard", {"output": "none"}, "leave output=none out"),
        ("deltanet,standard", {"window": 4}, "reads no scores, which window=4 hides"),
    ],
)
def test_what_cannot_be_a_pattern_is_refused_in_one_line(pattern, settings, words):
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


def test_a_run_with_a_pattern_asks_for_the_file_of_a_variant_in_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from mlx_attn.attention import Variant, register\n"
        "register(Variant(name='mine', output='none', value='key', formula='y', summary='s'))\n"
    )
    load_plugins(file)
    try:
        (plugin,) = used_plugins({"pattern": "deltanet,mine"})
    finally:
        unload_plugins()
    assert plugin["names"] == ["variant=mine"]


def test_conversions_and_exports_refuse_layers_of_several_forms():
    model = GPT(config())
    for change in (lambda: convert(model, "merged"), lambda: fold_norms(model)):
        with pytest.raises(ConfigError, match="train one variant in all layers"):
            change()
    assert obstacles(config(position="learned"))[0] == f"pattern={THREE_TO_ONE}"
