"""Which optimizer moves which weights, and how fast.

Groups are data: a name, which parameters belong to it, its optimizer and its peak learning rate. A
parameter belongs to the first group that claims it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from mlx_attn.training.adamw import AdamW
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.muon import Muon
from mlx_attn.trees import named_arrays

Claims = Callable[[str, mx.array], bool]


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are moved alike."""

    name: str
    claims: Claims
    optimizer: optim.Optimizer
    peak: float


class GroupedOptimizer:
    """Several optimizers, one per group of parameters, under one schedule.

    Args:
        model: Its parameters are divided among the groups; groups left empty are dropped.
        config: The recipe.
        n_heads: Heads H: the merged S moves its scores about H times further per Adam step than
            the factors do, so its learning rate starts at lr / H.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, n_heads: int):
        parameters = named_arrays(model.trainable_parameters())
        self.groups: list[Group] = []
        for group in _groups(config, n_heads):
            claimed = {n: a for n, a in parameters.items() if group.claims(n, a)}
            parameters = {n: a for n, a in parameters.items() if n not in claimed}
            if claimed:
                self.groups.append(group)
        filters = [group.claims for group in self.groups[:-1]]
        self._optimizer = optim.MultiOptimizer([g.optimizer for g in self.groups], filters)
        self._optimizer.init(model.trainable_parameters())

    def schedule(self, factor: float) -> None:
        """Set every group's learning rate to its peak times the factor."""
        for group, rate in zip(self.groups, self.rates(factor), strict=True):
            group.optimizer.learning_rate = mx.array(rate)

    def rates(self, factor: float) -> list[float]:
        """Every group's learning rate: its peak times the factor."""
        return [group.peak * factor for group in self.groups]

    def update(self, model: nn.Module, gradients: dict) -> None:
        """Move the model's weights by one step, in place."""
        self._optimizer.update(model, gradients)

    @property
    def state(self) -> list[dict]:
        """The optimizers' state dictionaries themselves: shared, not copied."""
        return [group.optimizer.state for group in self.groups]


def is_matrix(name: str, array: mx.array) -> bool:
    """Whether a parameter is a matrix, embeddings included."""
    return array.ndim >= 2


def is_hidden_matrix(name: str, array: mx.array) -> bool:
    """Whether a parameter is a matrix inside a block: what Muon is for."""
    return array.ndim == 2 and name.startswith("trf_blocks.") and name.endswith("weight")


def is_merged_score(name: str, array: mx.array) -> bool:
    """Whether a parameter is S."""
    return name.endswith("att.S.weight")


def everything(name: str, array: mx.array) -> bool:
    """The last group takes what is left."""
    return True


def _groups(config: TrainConfig, n_heads: int) -> list[Group]:
    def adamw(decay: float) -> optim.Optimizer:
        # MLX leaves the correction out by default, which makes the first steps 3 times too large.
        return AdamW(
            config.lr, [config.beta1, config.beta2], weight_decay=decay, bias_correction=True
        )

    decay = config.weight_decay
    merged_peak = config.lr * (config.merged_lr or 1 / n_heads)
    groups = [
        Group("merged", is_merged_score, adamw(decay), merged_peak),
        Group("matrices", is_matrix, adamw(decay), config.lr),
        Group("rest", everything, adamw(decay if config.decay == "all" else 0.0), config.lr),
    ]
    if config.optimizer == "muon":
        groups.insert(0, Group("hidden", is_hidden_matrix, Muon(config.muon_lr), config.muon_lr))
    return groups
