"""The code that ships with a model computes what the model computes, for every choice."""

import ast
import builtins
import runpy
from collections.abc import Callable
from itertools import product
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.config import CHOICES, POSITIONS, VARIANTS, Choice, choice_of
from mlx_attn.convert.model import written_out
from mlx_attn.errors import ConfigError
from mlx_attn.interop.choice_source import NotPortable
from mlx_attn.interop.shipped import portable_config, shipped_code, shipped_files
from mlx_attn.machine.exponentials import softmax
from mlx_attn.model.gpt import GPT

from .conftest import MODERN

TOKENS = mx.array([[(7 * i) % 60 for i in range(40)]])
FORMS: dict[str, dict[str, Any]] = {
    **{name: variant.maps for name, variant in VARIANTS.items()},
    **{
        f"{name}, alibi": {**v.maps, **MODERN, "position": "alibi"}
        for name, v in VARIANTS.items()
        if not v.position
    },
    "deltanet, rope": {**MODERN, "position": "rope", "mixing": "gated_delta", "n_kv_heads": 2},
    "delta rule": {"mixing": "delta"},
    "rope": {**MODERN, "position": "rope"},
    "rope, values of keys": {"position": "rope", "value": "from_key"},
    "exclusive, grouped": {"output": "exclusive", "n_kv_heads": 2},
    "learned slopes": {"position": "alibi", "alibi_slopes": "learned", "n_kv_heads": 1},
    "differential, learned slopes": {
        **VARIANTS["differential"].maps,
        "position": "alibi",
        "alibi_slopes": "learned",
    },
    "windows": {"window": 5, "global_every": 2, "position": "none"},
    "gated norm": {**MODERN, "mixing": "gated_delta", "output": "normed_gated", "position": "none"},
    "normed": {**MODERN, "output": "normed"},
    "token shift": {"token_shift": True},
    "merged, biases, tied": {"score": "merged", "qkv_bias": True, "tied_head": True},
    "two hooks": {"logits": "temperature+self_mask"},
}


SMALL = {"context_length": 16, "emb_dim": 16, "n_heads": 2, "n_layers": 2, "window": 3}
WINDOWED = [*product(VARIANTS, POSITIONS)]
CASES = FORMS | {
    f"{variant}, {position}, window": {**VARIANTS[variant].maps, **SMALL, "position": position}
    for variant, position in WINDOWED
}


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
        model = written_out(model)
        file = tmp_path / "model.py"
        file.write_text(shipped_code(model, "mlx"), encoding="utf-8")
        made = runpy.run_path(str(file))
        config = {"model_type": "mlx_attn", **portable_config(model)}
        loaded = made["Model"](made["ModelArgs"].from_dict(config))
        loaded.load_weights(list(named_arrays(model).items()))
        loaded.eval()
        return loaded

    return load


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES.keys())
def test_its_logits_are_the_model_s_whole_and_decoded(settings, make_model, shipped):
    try:
        model = make_model(**settings)
    except ConfigError as error:
        pytest.skip(str(error))
    tokens = TOKENS[:, : min(18, model.config.context_length)]
    code, expected = shipped(model), model(tokens)
    assert mx.allclose(code(tokens), expected, rtol=0, atol=5e-5)
    cache = [RowCache() for _ in range(code.args.cached_layers)]
    parts = [tokens[:, :8], tokens[:, 8:10], *(tokens[:, i : i + 1] for i in range(10, 14))]
    decoded = mx.concatenate([code(part, cache) for part in parts], axis=1)
    assert mx.allclose(decoded, expected[:, :14], rtol=0, atol=5e-5)


def test_it_holds_only_what_the_model_needs(make_model):
    code = shipped_code(make_model(score="merged"), "mlx")
    functions = {n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)}
    assert {"merged", "linear_value", "linear_output", "softmax_weights", "softmax"} <= functions
    assert not {"separate", "forget", "sink", "_softmax_with"} & functions


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS.keys())
def test_the_code_for_torch_defines_every_name_that_it_uses(settings, make_model):
    tree = ast.parse(shipped_code(written_out(make_model(**settings)), "torch"))
    for node in ast.walk(tree):  # annotations are not evaluated
        for key in {"annotation", "returns"} & {*node._fields}:
            setattr(node, key, None)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    defined |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    defined |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    imports = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
    defined |= {alias.asname or alias.name for node in imports for alias in node.names}
    assert {node.id for node in names} - defined <= {*dir(builtins)}


def test_it_refuses_more_tokens_than_learned_positions(make_model, shipped):
    with pytest.raises(ValueError, match="41 tokens are more than this model's 40"):
        shipped(make_model(context_length=40))(mx.zeros((1, 41), mx.int32))


# A choice of a user's own ships too, if all that it computes with can.

HALF = 0.5
SEPARATE = choice_of("score", "separate")


def _halved(s: mx.array) -> mx.array:
    return HALF * s


def _own_logits(a: Any, s: mx.array) -> mx.array:
    """Half of the scores."""
    return _halved(s)


def _cosine(a: Any, x: mx.array) -> tuple[mx.array, ...]:
    q, k = SEPARATE.apply(a, x)
    return q / mx.linalg.norm(q, axis=-1, keepdims=True), k


def _number_of_token(a: Any, x: mx.array) -> mx.array:
    return mx.sigmoid(x[:, None].sum(axis=-1, keepdims=True))


def _by_keys(a: Any, s: mx.array, q: mx.array, k: mx.array, kept: mx.array) -> mx.array:
    return mx.where(s > -mx.inf, q @ k.swapaxes(2, 3) * kept.swapaxes(2, 3), 0.0)


@pytest.fixture
def own(monkeypatch) -> Callable[..., Choice]:
    def register(map_name: str, apply: Callable[..., Any], **facts: Any) -> Choice:
        mine = Choice(map=map_name, name="mine", formula="a formula", apply=apply, **facts)
        monkeypatch.setitem(CHOICES[map_name], "mine", mine)
        return mine

    return register


@pytest.mark.parametrize(
    ("map_name", "apply", "facts"),
    [
        ("logits", _own_logits, {}),
        ("mixing", lambda a, s: softmax(s), {}),
        ("mixing", _by_keys, {"reads_keys": True, "remembers": _number_of_token}),
        ("score", _cosine, {"weights": SEPARATE.weights, "shape": SEPARATE.shape, "affine": False}),
    ],
)
def test_a_user_s_choice_ships_with_what_it_uses(own, make_model, shipped, map_name, apply, facts):
    own(map_name, apply, **facts)
    model = make_model(**{map_name: "mine"})
    assert mx.allclose(shipped(model)(TOKENS), model(TOKENS), rtol=0, atol=5e-5)
    assert shipped_code(model, "torch")


def _by_numpy(a: Any, s: mx.array) -> mx.array:
    return mx.array(np.array(s))


def norm(a: Any, s: mx.array) -> mx.array:
    """It has the name of a part of the file."""
    return s


def _within() -> Callable[..., mx.array]:
    factor = mx.array(2.0)
    return lambda a, s: factor * s


@pytest.mark.parametrize(
    ("apply", "complaint"),
    [
        (_by_numpy, "uses np of module, which does not ship"),
        (norm, "norm is the name of another part of the file: rename it"),
        (_within(), "uses variables of the function around it"),
    ],
)
def test_what_does_not_ship_is_named(own, make_model, apply, complaint):
    own("logits", apply)
    with pytest.raises(NotPortable, match=f"logits=mine has no code to ship: .*{complaint}"):
        shipped_code(make_model(logits="mine"), "mlx")


def test_a_layer_of_another_kind_does_not_ship(own, make_model):
    parts = {"two": lambda c: nn.Sequential(nn.Linear(4, 4))}
    own("logits", lambda a, s: s, weights=parts, init=lambda c, draw: {})
    with pytest.raises(NotPortable, match="its weight two is a Sequential"):
        portable_config(make_model(logits="mine"))


def test_what_pytorch_does_not_share_is_named(own, make_model):
    own("logits", lambda a, s: mx.logaddexp(s, mx.erf(s)).astype(s.dtype))
    _, _, obstacle = shipped_files(make_model(logits="mine"))
    assert obstacle == "PyTorch has no .astype, mx.erf of the same meaning"
