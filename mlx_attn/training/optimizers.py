"""Which optimizer moves which weights, and how fast.

Groups are data: a name, which parameters belong to it, its optimizer and its peak learning rate. A
parameter belongs to the first group that claims it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from mlx_attn.streams import side_by_side
from mlx_attn.training.adamw import AdamW
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.muon import Muon
from mlx_attn.trees import named_arrays

Claims = Callable[[str, mx.array], bool]


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are moved alike.

    Attributes:
        name: For people.
        claims: Whether a parameter is to be its own.
        optimizer: Moves them.
        peak: Learning rate at the schedule's top.
        parameters: Their names.
    """

    name: str
    claims: Claims
    optimizer: AdamW | Muon
    peak: float
    parameters: tuple[str, ...] = ()

    def own(self, arrays: dict[str, mx.array]) -> dict[str, mx.array]:
        """Its own among some arrays named like the parameters."""
        return {name: arrays[name] for name in self.parameters}


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
                group.optimizer.init(claimed)
                self.groups.append(replace(group, parameters=tuple(claimed)))

    def schedule(self, factor: float) -> None:
        """Set every group's learning rate to its peak times the factor."""
        for group, rate in zip(self.groups, self.rates(factor), strict=True):
            group.optimizer.learning_rate = mx.array(rate)

    def rates(self, factor: float) -> list[float]:
        """Every group's learning rate: its peak times the factor."""
        return [group.peak * factor for group in self.groups]

    def update(self, model: nn.Module, gradients: dict, longest: float = math.inf) -> mx.array:
        """Move the model's weights by one step, in place.

        Args:
            model: Whose weights.
            gradients: Of all of its trained parameters.
            longest: Gradients whose global norm is larger are scaled down to it.

        Returns:
            The gradients' global norm, sqrt(sum g^2), before that.
        """
        named, parameters = named_arrays(gradients), named_arrays(model.trainable_parameters())
        packed = [group.optimizer.packed(group.own(named)) for group in self.groups]
        squares = [square for arrays in packed for square in side_by_side(_squares, arrays)]
        norm = mx.sqrt(mx.stack(squares).sum())
        factor = mx.minimum(longest / (norm + 1e-6), 1.0)
        moved = {}
        for group, arrays in zip(self.groups, packed, strict=True):
            moved |= group.optimizer.moved(arrays, group.own(parameters), factor)
        model.update(tree_unflatten([(name, moved[name]) for name in parameters]))
        return norm

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
    def adamw(decay: float) -> AdamW:
        return AdamW(config.lr, [config.beta1, config.beta2], weight_decay=decay)

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


def _squares(array: mx.array) -> mx.array:
    return mx.square(array).sum()
