"""AdamW, Muon and a user's optimizer, each for a group of the weights.

An optimizer computes a few packed arrays, because starting an operation for every small parameter
takes longer than the numbers. Each has the same three methods: `packed` packs arrays named like the
parameters, `init` starts the state of the packed arrays, and `updated` takes a step.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from jaxtyping import Float
from mlx.utils import tree_unflatten

from mlx_attn.arrays import Arrays, named_arrays
from mlx_attn.machine.streams import cores, num_shards, parallel_map
from mlx_attn.training.config import TrainConfig

Vector = Float[mx.array, "_"]  # a vector of any length


class AdamW(optim.AdamW):
    """AdamW (arXiv:1711.05101, algorithm 2), on a few vectors of all parameters.

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        W <- (1 - lr decay) W - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)

    It changes each weight independently, so the numbers are MLX's, but it starts eighteen
    operations once instead of once per parameter. The parameters stay flat from step to step:
    `updated` returns views of `held`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.held: list[Vector] = []

    def hold(self, parameters: Arrays) -> Arrays:
        """Flatten the parameters and return views of the result."""
        self.held[:] = self.packed(parameters)
        views: Arrays = {}
        for vector, part in zip(self.held, _parts(parameters), strict=True):
            views |= _unflatten(vector, part)
        return views

    def packed(self, arrays: Arrays) -> list[Vector]:
        """Flatten all arrays into two vectors, computed in parallel; large ones into more."""
        return [mx.concatenate([a.reshape(-1) for a in p.values()]) for p in _parts(arrays)]

    def updated(self, gradients: list[Vector], parameters: Arrays, factor: mx.array) -> Arrays:
        """Return the parameters after one step.

        Args:
            gradients: As `packed` returns them.
            parameters: The parameters before the step.
            factor: Multiplies the gradients, to clip their norm.
        """
        self.state["step"] = self.step + 1
        beta1, beta2 = self.betas
        # Scalars, so that no whole vector is clipped or corrected. Clipping multiplies g by
        # `factor`, hence m by it and v by its square.
        new, new_square = (1 - beta1) * factor, (1 - beta2) * factor * factor
        # Both sides of the fraction are multiplied by sqrt(1 - beta2^t).
        correction = mx.sqrt(1 - beta2**self.step)
        rate = self.learning_rate * correction / (1 - beta1**self.step)
        eps = self.eps * correction
        decay = 1 - self.learning_rate * self.weight_decay
        # The scalars are arguments because all vectors wait for them.
        scalars = [new, new_square, rate, eps, decay]
        parts = _parts(parameters)
        inputs = ((g, self.held[i], self.state[str(i)], scalars) for i, g in enumerate(gradients))
        arrays: Arrays = {}
        for i, (vector, state) in enumerate(_some_at_a_time(self._moved, inputs)):
            self.state[str(i)] |= state
            self.held[i] = vector
            arrays |= _unflatten(vector, parts[i])
        return arrays

    def _moved(self, inputs: tuple) -> tuple[Vector, dict]:
        gradient, parameter, state, (new, new_square, rate, eps, decay) = inputs
        beta1, beta2 = self.betas
        m = beta1 * state["m"] + new * gradient
        v = beta2 * state["v"] + new_square * mx.square(gradient)
        return parameter * decay - rate * m / (mx.sqrt(v) + eps), {"m": m, "v": v}


MAX_FLAT = 2**24
"""The most numbers to flatten into one vector; beyond that, copying costs more memory than starting
fewer operations saves time."""


def _parts(arrays: Arrays) -> list[Arrays]:
    """Divide the arrays, in order, into groups that become one vector each.

    They are cut where half of the numbers are reached; of a large model, into more groups.
    """
    total = sum(array.size for array in arrays.values())
    parts: list[Arrays] = [{}]
    size = 0  # of the last group, in numbers
    for name, array in arrays.items():
        if total <= MAX_FLAT:
            is_full = size >= total / 2 and len(parts) == 1
        else:
            is_full = size + array.size > MAX_FLAT // 16
        if is_full and parts[-1]:
            parts.append({})
            size = 0
        parts[-1][name] = array
        size += array.size
    return parts


def _unflatten(vector: Vector, like: Arrays) -> Arrays:
    """Cut a vector into arrays with the names and shapes of `like`, one after the other."""
    *ends, _ = accumulate(array.size for array in like.values())  # where to cut
    pairs = zip(like.items(), mx.split(vector, ends), strict=True)
    return {name: part.reshape(array.shape) for (name, array), part in pairs}


def _some_at_a_time(function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
    """Apply `parallel_map` to as many parts at a time as there are cores.

    The memory of large parts is free again before the next ones start.
    """
    waiting = iter(parts)  # a generator, so that parts are computed only when they are taken
    while some := list(islice(waiting, max(2, cores()))):
        yield from parallel_map(function, some)


Stack = Float[mx.array, "n rows columns"]
Stacks = list[Float[mx.array, "_ _ _"]]


class Muon(optim.Muon):
    """Muon (kellerjordan.github.io/posts/muon), on stacks of matrices of one shape.

    v <- m v + (1 - m) g, a moving average
    u  = m v + (1 - m) g, Nesterov's: the momentum of one more equal gradient
    W <- W - lr sqrt(max(1, rows / columns)) orthogonal(u)
    """

    def packed(self, arrays: Arrays) -> Stacks:
        """Stack matrices of the same shape, or its transpose, as wide matrices."""
        wide = {n: array.T if _is_tall(array) else array for n, array in arrays.items()}
        return [mx.stack([wide[name] for name in names]) for names in _by_shape(arrays)]

    def updated(self, gradients: Stacks, parameters: Arrays, factor: mx.array) -> Arrays:
        """Return the matrices after one step; see `AdamW.updated` for the arguments."""
        self.state["step"] = self.step + 1
        momenta = [self.state[str(i)]["v"] for i in range(len(gradients))]  # one per stack
        # The clipping factor is a scalar: multiplying it here saves a pass over every gradient.
        new = (1 - self.momentum) * factor
        inputs = [(*pair, new) for pair in zip(gradients, momenta, strict=True)]
        directions: Arrays = {}
        for i, (v, u) in enumerate(parallel_map(self._nesterov, inputs)):
            self.state[str(i)]["v"] = v
            # [n, rows, columns], divided along n among the processor's cores.
            shards = parallel_map(newton_schulz, u.split(num_shards(len(u))))
            directions |= zip(_by_shape(parameters)[i], chain.from_iterable(shards), strict=True)
        moved: Arrays = {}
        for name, parameter in parameters.items():
            rows, columns = parameter.shape
            rate = self.learning_rate * max(1, rows / columns) ** 0.5
            step = rate.astype(parameter.dtype) * directions[name]
            moved[name] = parameter - (step.T if _is_tall(parameter) else step)  # -> (out, in)
        return moved

    def _nesterov(self, inputs: tuple[Stack, Stack, mx.array]) -> tuple[Stack, Stack]:
        gradient, v, new = inputs
        newest = new * gradient
        v = self.momentum * v + newest
        return v, newest + self.momentum * v


def newton_schulz(stack: Stack) -> Stack:
    """Iterate X <- a X + b (X X^T) X + c (X X^T)^2 X, from X of norm 1; rows at most columns.

    The coefficients lift small singular values fast and leave all of them between 0.7 and 1.2; more
    than five iterations would not bring them closer to 1.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = stack / (mx.sqrt(mx.square(stack).sum(axis=(1, 2), keepdims=True)) + 1e-7)
    for _ in range(5):
        # [n, rows, rows]: small, because the matrices are wide.
        gram = x @ x.swapaxes(1, 2)
        # a x + (b gram + c gram^2) x
        x = mx.addmm(x, mx.addmm(gram, gram, gram, alpha=c, beta=b), x, beta=a)
    return x


def _by_shape(matrices: Arrays) -> list[list[str]]:
    """Group the names of matrices by shape, with transposes in one group."""
    shapes = defaultdict(list)
    for name, matrix in matrices.items():
        shapes[tuple(sorted(matrix.shape))].append(name)
    return list(shapes.values())


def _is_tall(matrix: mx.array) -> bool:
    return matrix.shape[0] > matrix.shape[1]


_Claim = Callable[[str, mx.array], bool]  # whether the parameter of that name belongs to a group


@dataclass(slots=True)
class _Group:
    """Parameters that share an optimizer and a learning rate."""

    name: str
    claims: _Claim
    optimizer: AdamW | Muon
    peak: float  # highest learning rate of the schedule
    parameters: tuple[str, ...] = ()  # names of those that belong to it

    def own(self, arrays: Arrays) -> Arrays:
        return {name: arrays[name] for name in self.parameters}


def _is_hidden_matrix(name: str, array: mx.array) -> bool:
    """Return whether a parameter is a matrix in a block that is multiplied, not looked up."""
    in_block = name.startswith("trf_blocks.") and name.endswith("weight")
    return array.ndim == 2 and in_block


def _is_merged(name: str, _: mx.array) -> bool:
    return name.endswith("att.S.weight")


def _groups(config: TrainConfig, n_heads: int) -> list[_Group]:
    """Return the groups in the order in which they claim parameters; the last one takes the rest.

    The merged S moves its scores about H times further per step of Adam than its factors do, so its
    learning rate is lr / H.
    """

    def adamw(name: str, claims: _Claim, peak: float, decay: float) -> _Group:
        betas = [0.9, config.beta2]
        return _Group(name, claims, AdamW(config.lr, betas, weight_decay=decay), peak)

    def muon(name: str, claims: _Claim, peak: float) -> _Group:
        return _Group(name, claims, Muon(config.muon_lr, config.muon_momentum), peak)

    lr, decay = config.lr, config.weight_decay
    groups: list[_Group] = []
    if config.optimizer == "muon":
        groups.append(muon("hidden", _is_hidden_matrix, config.muon_lr))
    groups.append(adamw("merged", _is_merged, lr / n_heads, decay))
    groups.append(adamw("matrices", lambda _, array: array.ndim >= 2, lr, decay))
    groups.append(adamw("rest", lambda *_: True, lr, decay if config.decay == "all" else 0.0))
    return groups


class GroupedOptimizer:
    """Several optimizers, one per group of parameters, under one schedule.

    Args:
        model: Its parameters are divided among the groups; empty groups are dropped.
        config: The recipe.
        n_heads: Heads H, for the rate of a merged S.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, n_heads: int):
        parameters = named_arrays(model.trainable_parameters())
        self.groups: list[_Group] = []
        self._left: Arrays = {}
        for group in _groups(config, n_heads):
            # Each parameter goes to the first group that claims it.
            claimed = {n: a for n, a in parameters.items() if group.claims(n, a)}
            parameters = {n: a for n, a in parameters.items() if n not in claimed}
            if claimed:
                packed = group.optimizer.packed(claimed)
                group.optimizer.init({str(i): array for i, array in enumerate(packed)})
                group.parameters = tuple(claimed)
                self.groups.append(group)
        self.hold(model)
        self.leave(model)

    def hold(self, model: nn.Module) -> None:
        """Take over the model's weights, before each step, unless `update` made them."""
        parameters = named_arrays(model.trainable_parameters())
        if any(array is not self._left.get(name) for name, array in parameters.items()):
            for group in self.groups:
                if isinstance(group.optimizer, AdamW):
                    parameters |= group.optimizer.hold(group.own(parameters))
            model.update(tree_unflatten(list(parameters.items())))

    def leave(self, model: nn.Module) -> None:
        """Remember the model's weights as the result of `update`; call after each step.

        `update` cannot do this itself: a compiled step makes new arrays of them.
        """
        self._left = named_arrays(model.trainable_parameters())

    def schedule(self, factor: float) -> None:
        """Set the learning rate of every group to its peak times the factor."""
        for group in self.groups:
            group.optimizer.state["learning_rate"] = mx.array(group.peak * factor)

    def update(self, model: nn.Module, gradients: dict, max_norm: float = math.inf) -> mx.array:
        """Move the model's weights by one step, in place.

        Args:
            model: The model to update.
            gradients: The gradients of all its trained parameters.
            max_norm: Scale gradients down to this global norm if theirs is larger.

        Returns:
            The global norm of the gradients, sqrt(sum g^2), before clipping.
        """
        named, parameters = named_arrays(gradients), named_arrays(model.trainable_parameters())
        packed = [group.optimizer.packed(group.own(named)) for group in self.groups]
        # One norm over all groups, so that clipping does not change their proportions.
        squares = [_some_at_a_time(lambda a: mx.square(a).sum(), arrays) for arrays in packed]
        norm = mx.sqrt(sum(chain.from_iterable(squares), start=mx.array(0.0)))
        # The 1e-6 keeps a gradient of 0 from dividing by 0.
        factor = mx.minimum(max_norm / (norm + 1e-6), 1.0)
        updated: Arrays = {}
        for group, arrays in zip(self.groups, packed, strict=True):
            updated |= group.optimizer.updated(arrays, group.own(parameters), factor)
        model.update(tree_unflatten([(name, updated[name]) for name in parameters]))
        return norm

    @property
    def state(self) -> list[dict]:
        """Return the optimizers' state dictionaries themselves, not copies."""
        return [group.optimizer.state for group in self.groups]

    @property
    def held(self) -> list[list[mx.array]]:
        """Return the lists in which AdamW holds the weights, not copies."""
        return [g.optimizer.held for g in self.groups if isinstance(g.optimizer, AdamW)]
