"""The learning rate as a factor of its peak: a pure function of where the training stands.

Progress is the share of the budget that is spent, in steps or in seconds, so one rule serves both.
"""

import math
from collections.abc import Callable

from mlx_attn.training.config import TrainConfig

Shape = Callable[[float, TrainConfig], float]


def cosine(progress: float, config: TrainConfig) -> float:
    """From 1 to min_lr / lr along half a cosine (SGDR, arXiv:1608.03983)."""
    floor = config.min_lr / config.lr
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def trapezoid(progress: float, config: TrainConfig) -> float:
    """1, then linearly down to min_lr / lr over the last `cooldown` share (arXiv:2405.18392)."""
    floor = config.min_lr / config.lr
    if progress <= 1 - config.cooldown:
        return 1.0
    return floor + (1 - floor) * (1 - progress) / config.cooldown


def constant(progress: float, config: TrainConfig) -> float:
    """1 throughout."""
    return 1.0


SHAPES: dict[str, Shape] = {"cosine": cosine, "trapezoid": trapezoid, "constant": constant}


def learning_rate_factor(config: TrainConfig, step: int, steps: int, seconds: float) -> float:
    """What to multiply the peak learning rates by at a step, in [0, 1].

    Args:
        config: The recipe.
        step: Steps already done.
        steps: Bound in steps; 0 where there is none.
        seconds: Seconds already spent training.
    """
    if step < config.warmup:
        return (step + 1) / (config.warmup + 1)
    spent = (step - config.warmup) / max(1, steps - config.warmup) if steps else 0.0
    if config.minutes:
        spent = max(spent, seconds / (60 * config.minutes))
    return SHAPES[config.schedule](min(1.0, spent), config)
