"""AdamW and Muon, each for a group of the weights.

Starting an operation for every small parameter takes longer than its numbers. So both compute with
a few packed arrays, and AdamW keeps its weights packed from step to step: the model reads views of
them.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain, repeat
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float
from mlx.utils import tree_unflatten

from mlx_attn.arrays import Arrays, named_arrays
from mlx_attn.machine.operations import sum_of_squares
from mlx_attn.machine.streams import compiled_part, in_turns, parallel_map, split_among_cores
from mlx_attn.model.gpt import GPT
from mlx_attn.training.batches import Scalar
from mlx_attn.training.config import TrainConfig

Vector = Float[mx.array, "_"]  # a vector of any length


class AdamW:
    """AdamW (arXiv:1711.05101, with PyTorch's decay), on a few vectors of all parameters.

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        W <- (1 - lr decay) W - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)

    Args:
        weights: By name.
        peak: Highest learning rate of the schedule.
        beta2: The decay rate of v.
        decay: The weight decay.
        compile: "on" joins the passes over a vector into one on a Linux processor.
    """

    beta1, eps = 0.9, 1e-8

    def __init__(self, weights: Arrays, peak: float, beta2: float, decay: float, compile: str):
        self.peak, self.beta2, self.decay = peak, beta2, decay
        self._move = compiled_part(self._moved, compile, [])
        # Shapes by name, of each vector.
        self.shapes = [{n: a.shape for n, a in part.items()} for part in _parts(weights)]
        self.weights = self.packed(weights)
        self.state: dict[str, Any] = {
            "step": mx.array(0, mx.uint64),
            "learning_rate": mx.array(peak),
            "m": [mx.zeros_like(vector) for vector in self.weights],
            "v": [mx.zeros_like(vector) for vector in self.weights],
        }

    def read(self, arrays: Arrays) -> None:
        """Take over weights by name."""
        # In place, because a compiled step refers to this list.
        self.weights[:] = self.packed(arrays)

    def views(self) -> Arrays:
        """Return the weights by name, cut from the vectors."""
        arrays: Arrays = {}
        for vector, shapes in zip(self.weights, self.shapes, strict=True):
            *ends, _ = accumulate(map(math.prod, shapes.values()))  # where to cut
            pieces = zip(shapes.items(), mx.split(vector, ends), strict=True)
            arrays |= {name: piece.reshape(shape) for (name, shape), piece in pieces}
        return arrays

    def packed(self, arrays: Arrays) -> list[Vector]:
        """Flatten arrays named like the weights, end to end."""
        return [mx.concatenate([arrays[n].reshape(-1) for n in names]) for names in self.shapes]

    def step(self, gradients: list[Vector], factor: Scalar) -> None:
        """Move the weights by packed gradients, times a factor that clips their norm."""
        self.state["step"] = t = self.state["step"] + 1
        beta1, beta2, lr = self.beta1, self.beta2, self.state["learning_rate"]
        # Scalars, so that no whole vector is clipped or corrected. Clipping multiplies g by
        # `factor`, hence m by it and v by its square.
        new, new_square = (1 - beta1) * factor, (1 - beta2) * factor * factor
        # Both sides of the fraction are multiplied by sqrt(1 - beta2^t).
        correction = mx.sqrt(1 - beta2**t)
        rate, eps = lr * correction / (1 - beta1**t), self.eps * correction
        # The scalars are arguments because all vectors wait for them.
        scalars = [new, new_square, rate, eps, 1 - lr * self.decay]
        m, v = self.state["m"], self.state["v"]
        inputs = zip(gradients, self.weights, m, v, repeat(scalars), strict=False)
        # In turns, because a large model's old and new vectors would not fit side by side.
        for i, moved in enumerate(in_turns(self._move, inputs)):
            self.weights[i], m[i], v[i] = moved

    def _moved(self, inputs: tuple) -> tuple[Vector, Vector, Vector]:
        gradient, weights, m, v, (new, new_square, rate, eps, decay) = inputs
        m = self.beta1 * m + new * gradient
        v = self.beta2 * v + new_square * mx.square(gradient)
        return weights * decay - rate * m / (mx.sqrt(v) + eps), m, v


MAX_FLAT = 2**24
"""The most numbers to flatten into one vector; beyond that, copying costs more memory than starting
fewer operations saves time."""


def _parts(arrays: Arrays) -> list[Arrays]:
    """Divide the arrays, in order, into groups that become one vector each.

    They are cut where half of the numbers are reached; of a large model, into more groups.
    """
    total = sum(array.size for array in arrays.values())
    parts: list[Arrays] = [{}]
    for name, array in arrays.items():
        size = sum(other.size for other in parts[-1].values())
        if total <= MAX_FLAT:
            is_full = size >= total / 2 and len(parts) == 1
        else:
            is_full = size + array.size > MAX_FLAT // 16
        if is_full and parts[-1]:
            parts.append({})
        parts[-1][name] = array
    return parts


Stack = Float[mx.array, "n rows columns"]


class Muon:
    """Muon (kellerjordan.github.io/posts/muon), on stacks of matrices of one shape.

        v <- m v + (1 - m) g, a moving average
        u  = m v + (1 - m) g, Nesterov's: the momentum of one more equal gradient
        W <- W - lr sqrt(max(1, rows / columns)) orthogonal(u)

    Its `momentum` is m; see `AdamW` for the other arguments.
    """

    def __init__(self, weights: Arrays, peak: float, momentum: float):
        self.peak, self.momentum = peak, momentum
        # Matrices are stacked as wide ones, so a shape and its transpose share a stack.
        self.tall = {name for name, array in weights.items() if array.shape[0] > array.shape[1]}
        stacks = defaultdict(list)
        for name, array in weights.items():
            stacks[tuple(sorted(array.shape))].append(name)
        self.stacks = list(stacks.values())  # of names
        self.weights = dict(weights)
        self.state: dict[str, Any] = {
            "learning_rate": mx.array(peak),
            "v": [mx.zeros_like(stack) for stack in self.packed(weights)],
        }

    def read(self, arrays: Arrays) -> None:
        """Take over weights by name."""
        self.weights |= {name: arrays[name] for name in self.weights}

    def views(self) -> Arrays:
        """Return the weights by name."""
        return self.weights

    def packed(self, arrays: Arrays) -> list[Stack]:
        """Stack arrays named like the weights."""
        tall = self.tall
        return [mx.stack([arrays[n].T if n in tall else arrays[n] for n in s]) for s in self.stacks]

    def step(self, gradients: list[Stack], factor: Scalar) -> None:
        """Move the weights; see `AdamW.step`."""
        # The clipping factor is a scalar: multiplying it here saves a pass over every gradient.
        new = (1 - self.momentum) * factor
        inputs = [(*pair, new) for pair in zip(gradients, self.state["v"], strict=True)]
        for i, (v, u) in enumerate(parallel_map(self._nesterov, inputs)):
            self.state["v"][i] = v
            # [n, rows, columns], divided along n among the processor's cores.
            shards = parallel_map(newton_schulz, split_among_cores(u))
            for name, direction in zip(self.stacks[i], chain(*shards), strict=True):
                rows, columns = self.weights[name].shape
                rate = self.state["learning_rate"] * max(1, rows / columns) ** 0.5
                step = rate * (direction.T if name in self.tall else direction)
                # A new array: `-=` would change the one that the model has.
                self.weights[name] = self.weights[name] - step

    def _nesterov(self, inputs: tuple[Stack, Stack, Scalar]) -> tuple[Stack, Stack]:
        gradient, v, new = inputs
        newest = new * gradient  # [n, rows, columns], rows at most columns
        v = self.momentum * v + newest
        return v, newest + self.momentum * v


def newton_schulz(stack: Stack) -> Stack:
    """Iterate X <- a X + b (X X^T) X + c (X X^T)^2 X, from X of norm 1; rows at most columns.

    The coefficients lift small singular values fast and leave those above 0.005 between 0.68 and
    1.16; more than five iterations would not bring them closer to 1.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = stack / (mx.sqrt(mx.square(stack).sum(axis=(1, 2), keepdims=True)) + 1e-7)
    for _ in range(5):
        # [n, rows, rows]: small, because the matrices are wide.
        gram = x @ x.swapaxes(1, 2)
        # a x + (b gram + c gram^2) x
        x = mx.addmm(x, mx.addmm(gram, gram, gram, alpha=c, beta=b), x, beta=a)
    return x


def _group_of(name: str, array: mx.array, config: TrainConfig, tables: set[str]) -> str:
    """Return the group of a parameter; `tables` are the modules that are looked up.

    Muon moves the matrices in a block that are multiplied, not looked up. The merged S and its
    bias have groups of their own: they move scores about H times further per step of Adam than the
    factors do.
    """
    module, _, part = name.rpartition(".")
    is_hidden = part == "weight" and array.ndim == 2 and module.startswith("trf_blocks.")
    if config.optimizer == "muon" and is_hidden and module not in tables:
        return "hidden"
    if module.endswith("att.S"):
        return f"merged {part}"
    return "matrices" if array.ndim >= 2 else "rest"


class GroupedOptimizer:
    """AdamW and Muon, one for each group of parameters, under one schedule.

    It holds the weights that it moves, and gives them to the model. Call `read` after the model got
    others.

    Args:
        model: Its parameters are divided among the groups; empty groups are dropped.
        config: The recipe.
    """

    def __init__(self, model: GPT, config: TrainConfig):
        self.model, self.clip = model, config.clip
        lr, decay = config.lr, config.weight_decay
        slow, of_rest = lr / model.config.n_heads, decay if config.decay == "all" else 0.0
        adamw = partial(AdamW, beta2=config.beta2, compile=config.compile)
        makes: dict[str, Callable[[Arrays], AdamW | Muon]] = {
            "hidden": partial(Muon, peak=config.muon_lr, momentum=config.muon_momentum),
            "merged weight": partial(adamw, peak=slow, decay=decay),
            "merged bias": partial(adamw, peak=slow, decay=of_rest),
            "matrices": partial(adamw, peak=lr, decay=decay),
            "rest": partial(adamw, peak=lr, decay=of_rest),
        }
        weights: dict[str, Arrays] = {group: {} for group in makes}
        tables = {name for name, part in model.named_modules() if isinstance(part, nn.Embedding)}
        for name, array in named_arrays(model.trainable_parameters()).items():
            weights[_group_of(name, array, config, tables)][name] = array
        self.groups = {group: makes[group](arrays) for group, arrays in weights.items() if arrays}
        self._give()

    def read(self) -> None:
        """Take over the model's weights, which something else has set."""
        weights = named_arrays(self.model.trainable_parameters())
        for group in self.groups.values():
            group.read(weights)
        self._give()

    def _give(self) -> None:
        """Give the model its weights."""
        # Views of the packed vectors: nothing is copied.
        pairs = chain(*(group.views().items() for group in self.groups.values()))
        self.model.update(tree_unflatten(list(pairs)))

    def schedule(self, factor: float) -> None:
        """Set the learning rate of every group to its peak times the factor."""
        for group in self.groups.values():
            # An array, so that a compiled step reads it instead of a constant.
            group.state["learning_rate"] = mx.array(group.peak * factor)

    def step(self, gradients: dict) -> Scalar:
        """Move the weights, and the model's with them; return sqrt(sum g^2) before clipping.

        Args:
            gradients: Of all trained parameters, as a tree like the model's.
        """
        named = named_arrays(gradients)
        packed = [group.packed(named) for group in self.groups.values()]
        # One norm over all weights, so that clipping does not change the direction.
        squares = in_turns(sum_of_squares, chain(*packed))
        norm = mx.sqrt(sum(squares, mx.array(0.0)))
        # The 1e-6 keeps a gradient of 0 from dividing by 0.
        factor = mx.minimum((self.clip or math.inf) / (norm + 1e-6), 1.0)
        for group, of_group in zip(self.groups.values(), packed, strict=True):
            group.step(of_group, factor)
        self._give()
        return norm

    @property
    def state(self) -> list[dict]:
        """Return the groups' state dictionaries themselves, not copies."""
        return [group.state for group in self.groups.values()]


COOLDOWN = 0.6
"""The part of a training that the schedule "wsd" spends decaying."""


def learning_rate_factor(config: TrainConfig, step: int, steps: int, seconds: float) -> float:
    """Return the factor of the peak learning rates, in [0, 1], after steps and seconds.

    After the warm-up "cosine" decays to min_lr / lr along half a cosine (SGDR, arXiv:1608.03983).
    "wsd" stays at 1 and decays linearly in the last `COOLDOWN` part of the training
    (warmup-stable-decay, arXiv:2405.18392), "linear" decays all the way. The training ends after
    `steps`, if it has a bound in steps.
    """
    # Linear warm-up. Its first factor is above 0, so that no step is wasted.
    warm = min(1.0, (step + 1) / (config.warmup + 1))
    after = max(0, step - config.warmup)
    spent = after / max(1, steps - config.warmup) if steps else 0.0
    # With two bounds, the one that ends the training first sets the rate.
    if config.minutes:
        spent = max(spent, seconds / (60 * config.minutes))
    spent, floor = min(1.0, spent), config.min_lr / config.lr
    if config.schedule == "cosine":
        return warm * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * spent)))
    cooldown = {"wsd": COOLDOWN, "linear": 1.0, "constant": 0.0}[config.schedule]
    if spent > 1 - cooldown:
        return warm * (floor + (1 - floor) * (1 - spent) / cooldown)
    return warm
