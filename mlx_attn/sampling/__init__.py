"""Sampling: a trained model goes on with a text, token by token.

`stream` is the entrance. Behind it: `config` says how tokens are drawn, `samplers` draws them,
`window` is what the model has read, `text` turns tokens into whole characters.
"""

from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.sampling.streaming import Piece, Statistics, stream
from mlx_attn.sampling.window import Window, decode

__all__ = ["Piece", "Sampler", "SamplerConfig", "Statistics", "Window", "decode", "stream"]
