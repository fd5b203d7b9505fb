"""The GPT around the attention: configuration, presets, initialisation, blocks."""

from typing import TYPE_CHECKING

from mlx_attn.lazy import lazily
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.presets import PRESETS, Preset, find_preset

if TYPE_CHECKING:
    from mlx_attn.model.cost import ModelCost, model_cost
    from mlx_attn.model.gpt import GPT

__all__ = ["GPT", "PRESETS", "GPTConfig", "ModelCost", "Preset", "find_preset", "model_cost"]

__getattr__ = lazily(__name__, {"GPT": "gpt", "ModelCost": "cost", "model_cost": "cost"})
