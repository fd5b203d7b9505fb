"""The code that ships with a model computes what the model computes, for every choice."""

import ast
import runpy
from collections.abc import Callable
from itertools import product
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.config import CHOICES, POSITIONS, VARIANTS, Choice
from mlx_attn.errors import ConfigError
from mlx_attn.interop.shipped import portable_arrays, portable_config, shipped_code
from mlx_attn.model.gpt import GPT

from .conftest import MODERN

TOKENS = mx.array([[(7 * i) % 60 for i in range(40)]])
FORMS: dict[str, dict[str, Any]] = {
    **{name: variant.maps for name, variant in VARIANTS.items()},
    **{f"{name}, alibi": {**v.maps, **MODERN, "position": "alibi"} for name, v in VARIANTS.items()},
    "rope": {**MODERN, "position": "rope"},
    "rope, merged": {**MODERN, "position": "rope", "score": "merged"},
    "rope, values of keys": {"position": "rope", "value": "from_key"},
    "grouped queries": {"n_kv_heads": 2},
    "exclusive, grouped": {"output": "exclusive", "n_kv_heads": 2},
    "learned slopes": {"position": "alibi", "alibi_slopes": "learned", "n_kv_heads": 1},
    "differential, learned slopes": {
        **VARIANTS["differential"].maps,
        "position": "alibi",
        "alibi_slopes": "learned",
    },
    "windows": {"window": 5, "global_every": 2, "position": "none"},
    "qk-norm": {"qk_norm": True},
    "token shift": {"token_shift": True},
    "biases": {"qkv_bias": True},
    "merged, biases, tied": {"score": "merged", "qkv_bias": True, "tied_head": True},
    "two hooks": {"logits": "temperature+self_mask"},
    "odd widths": {"head_dim": 6, "value_dim": 10},
    "shrunk": {"score": "shrunk", "value": "shrunk"},
}


SMALL = {"context_length": 16, "emb_dim": 16, "n_heads": 2, "n_layers": 2, "window": 3}
WINDOWED = [*product(VARIANTS, POSITIONS)]


class RowCache:
    """What mlx-lm's cache does: rows are added, and those of all tokens come back."""

    def __init__(self):
        self.rows, self.offset = None, 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        old = [] if self.rows is None else [self.rows]
        self.rows = mx.concatenate([*old, keys], axis=2)
        self.offset = self.rows.shape[2]
        return self.rows, values


@pytest.fixture
def shipped(tmp_path) -> Callable[[GPT], Any]:
    """The model of the code that ships with another one, with its weights."""

    def load(model: GPT) -> Any:
        file = tmp_path / "model.py"
        file.write_text(shipped_code(model.config, "mlx"), encoding="utf-8")
        made = runpy.run_path(str(file))
        config = {"model_type": "mlx_attn", **portable_config(model)}
        loaded = made["Model"](made["ModelArgs"].from_dict(config))
        loaded.load_weights(list(portable_arrays(model).items()))
        loaded.eval()
        return loaded

    return load


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS.keys())
def test_its_logits_are_the_model_s(settings, make_model, shipped):
    model = make_model(**settings)
    assert mx.allclose(shipped(model)(TOKENS), model(TOKENS), rtol=0, atol=5e-5)


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS.keys())
def test_a_token_at_a_time_it_computes_the_same(settings, make_model, shipped):
    model = shipped(make_model(**settings))
    cache = [RowCache() for _ in range(model.args.cached_layers)]
    tokens = TOKENS[:, :18]
    parts = [tokens[:, :11], *(tokens[:, i : i + 1] for i in range(11, 18))]
    decoded = mx.concatenate([model(part, cache) for part in parts], axis=1)
    assert mx.allclose(decoded, model(tokens), rtol=0, atol=5e-5)


@pytest.mark.parametrize(("variant", "position"), WINDOWED)
def test_with_a_window_its_logits_are_the_model_s_whole_and_decoded(
    variant, position, make_model, shipped
):
    try:
        model = make_model(**VARIANTS[variant].maps, **SMALL, position=position)
    except ConfigError as error:
        pytest.skip(str(error))
    code, tokens = shipped(model), TOKENS[:, :10]
    assert mx.allclose(code(tokens), model(tokens), rtol=0, atol=5e-5)
    cache = [RowCache() for _ in range(code.args.cached_layers)]
    parts = [code(tokens[:, i : i + 2], cache) for i in range(0, 10, 2)]
    assert mx.allclose(mx.concatenate(parts, axis=1), model(tokens), rtol=0, atol=5e-5)


@pytest.mark.parametrize("library", ["mlx", "torch"])
def test_it_holds_only_what_the_model_needs(library, make_model):
    code = shipped_code(make_model(score="merged").config, library)
    functions = {n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)}
    assert {"query_merged", "key_whole", "keep_input", "value_linear"} <= functions
    assert not {"query_slice", "keep_kv", "logits_forget", "mixing_sink"} & functions


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS.keys())
def test_the_code_for_torch_defines_every_name_that_it_uses(settings, make_model):
    tree = ast.parse(shipped_code(make_model(**settings).config, "torch"))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    defined |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    defined |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    imports = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
    defined |= {alias.asname or alias.name for node in imports for alias in node.names}
    known = {"float", "isinstance", "range", "setattr", "super", "ValueError", "property"}
    assert {node.id for node in names} - defined <= known


def test_it_refuses_more_tokens_than_learned_positions(make_model, shipped):
    model = shipped(make_model(context_length=8))
    with pytest.raises(ValueError, match="9 tokens are more than this model's 8"):
        model(TOKENS[:, :9])


def test_a_choice_of_a_plugin_has_no_code_to_ship(monkeypatch, make_model):
    mine = Choice(map="logits", name="mine", formula="s_h = s_h", apply=lambda a, s: s)
    monkeypatch.setitem(CHOICES["logits"], "mine", mine)
    with pytest.raises(ConfigError, match=r"model: logits=mine: a choice of your own plugin"):
        shipped_code(make_model(logits="mine").config, "mlx")
