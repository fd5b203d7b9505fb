"""Sampling: a trained model goes on with a text, token by token.

`stream` is the entrance, `open_voice` the one from a run. Behind them: `config` says how tokens are
drawn, `samplers` draws them, `window` is what the model has read, `text` makes whole characters.
"""

from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.sampling.streaming import Piece, Statistics, stream
from mlx_attn.sampling.voice import Voice, open_voice
from mlx_attn.sampling.window import Window, decode

__all__ = [
    "Piece",
    "Sampler",
    "SamplerConfig",
    "Statistics",
    "Voice",
    "Window",
    "decode",
    "open_voice",
    "stream",
]
