"""The norm before attention, folded into the maps that read it.

With x = gain * z + shift, where z is normalised, every x W + b is z (diag(gain) W) + (b + shift W).
Merged scores have x on both sides: S' = diag(gain) S diag(gain), u' = gain * (u + shift S), and
what the shift adds for the key alone cancels in the softmax. After that the norm only normalises.
"""

from dataclasses import replace

import numpy as np

from mlx_attn.errors import ConfigError
from mlx_attn.lab.convert.assembly import build_model
from mlx_attn.lab.convert.layer import Layer, Weights, as_numpy, completed, read_layer
from mlx_attn.model import GPT, GPTConfig
from mlx_attn.trees import named_arrays


def fold_norms(model: GPT) -> GPT:
    """The same model with every gain of `norm1` 1 and every shift 0.

    Raises:
        ConfigError: Attention uses x itself, or a shift has no place.
    """
    _check(model.config)
    arrays = dict(named_arrays(model))
    shifted = "bias" in model.trf_blocks[0].norm1
    target = replace(model.config, qkv_bias=model.config.qkv_bias or shifted)
    for i, block in enumerate(model.trf_blocks):
        gain = as_numpy(block.norm1["weight"])
        shift = as_numpy(block.norm1["bias"]) if shifted else np.zeros_like(gain)
        folded = _fold(read_layer(block.att), gain, shift)
        norm = {"norm1.weight": np.ones_like(gain)}
        norm |= {"norm1.bias": np.zeros_like(shift)} if shifted else {}
        attention = completed(folded, target.attention())
        parts = norm | {f"att.{name}": weight for name, weight in attention.items()}
        arrays |= {f"trf_blocks.{i}.{name}": weight for name, weight in parts.items()}
    return build_model(target, arrays, model.tok_emb.weight.dtype)


def _fold(layer: Layer, gain: np.ndarray, shift: np.ndarray) -> Weights:
    weights = dict(layer.weights)
    for name in _maps_of_x(layer):
        weight = weights[f"{name}.weight"]
        gains, shifts = (np.resize(v, weight.shape[1]) for v in (gain, shift))
        weights[f"{name}.bias"] = weights.get(f"{name}.bias", 0) + weight @ shifts
        weights[f"{name}.weight"] = weight * gains
    if layer.config.score == "merged":
        gains = np.tile(gain, layer.config.n_heads)
        weights["S.weight"] *= gains[:, None]
        weights["S.bias"] *= gains
    return weights


def _maps_of_x(layer: Layer) -> list[str]:
    """The maps whose input is x, or softmax_h x of all heads."""
    names = ["W_query", "W_key", "W_value", "S", "VO"]
    if layer.config.value == "from_key":
        names.remove("W_value")
    return [name for name in names if f"{name}.weight" in layer.weights]


def _check(config: GPTConfig) -> None:
    if config.score in ("no_query", "no_key", "shrunk") or config.value in ("identity", "shrunk"):
        raise ConfigError(
            f"score={config.score} and value={config.value} use x itself, so the norm's gain has "
            "nowhere to go: fold it before that conversion, or leave --fold-norm out"
        )
    if config.output == "merged" and config.drop_rate > 0 and config.bias:
        raise ConfigError(
            "the norm's shift becomes a constant only where attention weights add up to 1, and "
            f"drop_rate={config.drop_rate} drops some: leave --fold-norm out"
        )
