"""The GPT around the attention: configuration, presets, initialisation, blocks."""

from mlx_attn.model.config import GPTConfig
from mlx_attn.model.cost import ModelCost, model_cost
from mlx_attn.model.gpt import GPT
from mlx_attn.model.presets import PRESETS, Preset, find_preset

__all__ = ["GPT", "PRESETS", "GPTConfig", "ModelCost", "Preset", "find_preset", "model_cost"]
