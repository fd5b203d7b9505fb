"""The laws of a user's norm, activation, block or position at the input, tried on a small model.

They are the laws of the attention layer (`mlx_attn.attention.laws`): a leak from a later token is
refused before it is trained.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.config import MAPS
from mlx_attn.attention.laws import NOT_FINITE, ROUNDING, TOKENS, differ, moved
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig, own_parts

_SIZES = {"vocab_size": 11, "context_length": TOKENS, "n_layers": 1, "n_heads": 2, "emb_dim": 16}
_DERIVED = ("hidden_dim", "head_dim", "value_dim", "n_kv_heads", "latent_dim")
_SMALL: dict[str, Any] = {
    **{**_SIZES, **MAPS, **dict.fromkeys(_DERIVED, 0), "scale": 0.0},
    **{"start": "book", "drop_rate": 0.0, "window": 0, "global_every": 0, "pattern": ""},
    **{"norm": "layernorm", "activation": "gelu", "position": "none", "residual": "pre_norm"},
}
"""Settings of the small model, in which all parts are this program's."""
_passed: dict[GPTConfig, Any] = {}

Make = Callable[[GPTConfig], Any]  # the class `GPT`, whose module imports this one


def check_parts(config: GPTConfig, make: Make) -> None:
    """Refuse a model whose parts, as far as they are a user's, break a law; each is tried once.

    Raises:
        ConfigError: A part returns another shape, leaks later tokens, mixes sequences, is random,
            or decodes differently from a full pass.
    """
    for row in own_parts(config):
        # Only one of the user's parts at a time, so that the message can name it.
        small = replace(config, **{**_SMALL, row.map: row.name})
        if _passed.get(small) is row:
            continue
        _passed[small] = row  # now, because the trial makes such models
        try:
            if broken := _wrong_result(small, row) or _broken_law(small, make):
                raise ConfigError(f"{row.map}={row.name} {broken}")
        except BaseException:
            del _passed[small]
            raise


def _wrong_result(c: GPTConfig, row: Any) -> str:
    """Return how the part's result has a wrong shape, or how its block calls attention wrongly."""
    calls = []

    def noted(y: mx.array) -> mx.array:
        calls.append(y.shape)
        return y

    def same(y: mx.array) -> mx.array:
        return y

    x = mx.zeros((2, 3, c.hidden_dim if row.map == "activation" else c.emb_dim))
    if row.map == "position":
        x = x[0]
        y = row.apply(c, mx.arange(3))
    elif row.map == "residual":
        y = row.made(c)(x, noted, same, same, same)
    else:
        y = row.made(c)(x)
    if not isinstance(y, mx.array) or y.shape != x.shape:
        returned = getattr(y, "shape", type(y).__name__)
        return f"must return the shape {x.shape}, and returned {returned}"
    if row.map == "residual" and calls != [x.shape]:
        return f"must call attention once, with the shape {x.shape}, and called it with {calls}"
    return ""


def _broken_law(c: GPTConfig, make: Make) -> str:
    """Return the law that a model of these settings breaks; empty if it keeps all."""
    models = make(c), make(c)
    starts, again = (named_arrays(model) for model in models)
    if any(_off(array, again[name]) for name, array in starts.items()):
        return "starts with other weights each time: draw them from a seed, or use nn.Linear"
    model = models[0]
    model.eval()
    model.update(moved(model.trainable_parameters()))
    tokens = mx.array(np.random.default_rng(0).integers(0, c.vocab_size, (2, TOKENS)))
    y, caches = model(tokens), model.new_caches()
    # Same first six tokens, other later ones.
    later = mx.concatenate([tokens[:, :6], (tokens[:, 6:] + 1) % c.vocab_size], axis=1)
    # Pieces of 7, 1, 1 and the remaining tokens: reading several at a time and single ones.
    pieces = [model(piece, caches) for piece in mx.split(tokens, [7, 8, 9], axis=1)]
    laws = {
        NOT_FINITE: not mx.isfinite(y).all(),
        "computes something else each time": _off(model(tokens), y),
        "lets a token read later ones": _off(model(later)[:, :6], y[:, :6]),
        "mixes the sequences of a batch": _off(model(tokens[:1]), y[:1]),
        "decodes differently with a cache": _off(mx.concatenate(pieces, axis=1), y),
    }
    return next((law for law, broken in laws.items() if broken), "")


def _off(y: mx.array, wanted: mx.array) -> bool:
    return differ(y, wanted, ROUNDING) is not None
