"""The learning rate's schedule, and the optimizers: AdamW and Muon on a few packed arrays.

Progress is the share of the budget that is spent, in steps or in seconds, so one rule serves both.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from jaxtyping import Float
from mlx.utils import tree_unflatten

from mlx_attn.arrays import named_arrays
from mlx_attn.errors import ConfigError
from mlx_attn.machine.streams import cores, num_shards, parallel_map
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


SHAPES: dict[str, Shape] = {
    "cosine": cosine,
    "trapezoid": trapezoid,
    "constant": lambda progress, config: 1.0,
}


def learning_rate_factor(config: TrainConfig, step: int, steps: int, seconds: float) -> float:
    """What to multiply the peak learning rates by, in [0, 1].

    Args:
        config: The recipe.
        step: Steps done.
        steps: Bound in steps; 0 where there is none.
        seconds: Of training so far.
    """
    if step < config.warmup:
        return (step + 1) / (config.warmup + 1)
    spent = (step - config.warmup) / max(1, steps - config.warmup) if steps else 0.0
    if config.minutes:
        spent = max(spent, seconds / (60 * config.minutes))
    return SHAPES[config.schedule](min(1.0, spent), config)


ITERATIONS = 5

Arrays = dict[str, mx.array]
Stack = Float[mx.array, "n rows columns"]
Stacks = list[Float[mx.array, "_ _ _"]]


class Muon(optim.Optimizer):
    """W - lr sqrt(max(1, rows / columns)) orthogonal(u), with u = (1 - m) g + m v.

    The momentum v is the moving average m v + (1 - m) g, and u is Nesterov's. Its state is that of
    the stacks of `packed`, with which it is initialised, not of matrices.

    Args:
        learning_rate: lr.
        momentum: m.
    """

    def __init__(self, learning_rate: float, momentum: float = 0.95):
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum = momentum
        self.held: list[mx.array] = []

    def hold(self, parameters: Arrays) -> Arrays:
        """Return the matrices as they are."""
        return parameters

    def init_single(self, parameter: mx.array, state: dict) -> None:
        """The momentum of a stack of matrices starts at 0."""
        state["v"] = mx.zeros_like(parameter)

    def packed(self, arrays: Arrays) -> Stacks:
        """Matrices of one shape, or of its transpose, as one stack of wide ones."""
        return [mx.stack([_wide(arrays[name]) for name in names]) for names in _by_shape(arrays)]

    def moved(self, gradients: Stacks, parameters: Arrays, factor: mx.array) -> Arrays:
        """The matrices after one step.

        Args:
            gradients: As `packed` gives them.
            parameters: What they are the gradients of.
            factor: Multiplies the gradients.
        """
        self.state["step"] = self.step + 1
        momenta = [self.state[str(i)]["v"] for i in range(len(gradients))]
        new = (1 - self.momentum) * factor
        given = [(*pair, new) for pair in zip(gradients, momenta, strict=True)]
        moved = {}
        for i, (v, u) in enumerate(parallel_map(self._update, given)):
            self.state[str(i)]["v"] = v
            shares = parallel_map(newton_schulz, u.split(num_shards(len(u))))
            moved |= zip(_by_shape(parameters)[i], chain.from_iterable(shares), strict=True)
        return {name: self._moved(moved[name], array) for name, array in parameters.items()}

    def _update(self, given: tuple[Stack, Stack, mx.array]) -> tuple[Stack, Stack]:
        gradient, v, new = given
        newest = new * gradient
        v = self.momentum * v + newest
        return v, newest + self.momentum * v

    def _moved(self, direction: mx.array, parameter: mx.array) -> mx.array:
        rows, columns = parameter.shape
        rate = self.learning_rate * max(1, rows / columns) ** 0.5
        step = rate.astype(parameter.dtype) * direction
        return parameter - (step.T if _is_tall(parameter) else step)


def _by_shape(matrices: Arrays) -> list[list[str]]:
    """The names of matrices, those of one shape or its transpose together."""
    shapes = defaultdict(list)
    for name, matrix in matrices.items():
        shapes[tuple(sorted(matrix.shape))].append(name)
    return list(shapes.values())


def newton_schulz(stack: Stack, iterations: int = ITERATIONS) -> Stack:
    """X <- a X + b (X X^T) X + c (X X^T)^2 X, from X of norm 1; rows at most columns.

    The coefficients lift small singular values fast and leave all of them between 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = stack / (mx.sqrt(mx.square(stack).sum(axis=(1, 2), keepdims=True)) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.swapaxes(1, 2)
        x = mx.addmm(x, mx.addmm(gram, gram, gram, alpha=c, beta=b), x, beta=a)
    return x


def _is_tall(matrix: mx.array) -> bool:
    return matrix.shape[0] > matrix.shape[1]


def _wide(matrix: mx.array) -> mx.array:
    return matrix.T if _is_tall(matrix) else matrix


Vector = Float[mx.array, "_"]
"""Of any length."""

MOST_JOINED = 2**24
"""Numbers at most that are put end to end: of more, the copies would take more memory than starting
some operations takes time."""


class AdamW(optim.AdamW):
    """AdamW (arXiv:1711.05101, algorithm 2) on parameters put end to end, with bias correction.

    It computes every weight by itself, so the numbers are MLX's; the cost of starting eighteen
    operations is paid once, not once for every parameter. Two vectors are computed side by side.
    Its state is that of the vectors of `packed`, with which it is initialised. The parameters stay
    end to end from step to step: those that `moved` returns are views of `held`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.held: list[Vector] = []

    def hold(self, parameters: Arrays) -> Arrays:
        """Put parameters end to end, and return views of that."""
        self.held[:] = self.packed(parameters)
        views: Arrays = {}
        for vector, part in zip(self.held, _parts(parameters), strict=True):
            views |= parted(vector, part)
        return views

    def packed(self, arrays: Arrays) -> list[Vector]:
        """The numbers of all arrays as two vectors; of large arrays, each as one."""
        return [joined(part) for part in _parts(arrays)]

    def moved(self, gradients: list[Vector], parameters: Arrays, factor: mx.array) -> Arrays:
        """The parameters after one step; arguments as of `Muon.moved`."""
        self.state["step"] = self.step + 1
        parts, rates = _parts(parameters), self._rates(factor)
        # The rates are given along because both vectors wait for them.
        given = (
            (gradient, self.held[i], self.state[str(i)], rates)
            for i, gradient in enumerate(gradients)
        )
        arrays: Arrays = {}
        for i, (vector, state) in enumerate(_some_at_a_time(self._moved, given)):
            self.state[str(i)] |= state
            self.held[i] = vector
            arrays |= parted(vector, parts[i])
        return arrays

    def _rates(self, factor: mx.array) -> list[mx.array]:
        """What the formulas multiply by, so that no whole vector is corrected or clipped."""
        beta1, beta2 = self.betas
        correction = mx.sqrt(1 - beta2**self.step)
        return [
            (1 - beta1) * factor,
            (1 - beta2) * factor * factor,
            self.learning_rate * correction / (1 - beta1**self.step),
            self.eps * correction,
            1 - self.learning_rate * self.weight_decay,
        ]

    def _moved(self, given: tuple) -> tuple[Vector, dict]:
        gradient, parameter, state, (new, new_square, rate, eps, kept) = given
        beta1, beta2 = self.betas
        m = beta1 * state["m"] + new * gradient
        v = beta2 * state["v"] + new_square * mx.square(gradient)
        return parameter * kept - rate * m / (mx.sqrt(v) + eps), {"m": m, "v": v}


def _some_at_a_time(function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
    """The results of `parallel_map`, begun for as many parts at a time as there are cores.

    Where a part is large, what it took is free again before others begin.
    """
    waiting = iter(parts)
    while some := list(islice(waiting, max(2, cores()))):
        yield from parallel_map(function, some)


def _parts(arrays: Arrays) -> list[Arrays]:
    """The arrays in order, cut into what is computed as one vector."""
    if sum(array.size for array in arrays.values()) <= MOST_JOINED:
        return _halves(arrays)
    parts: list[Arrays] = []
    for name, array in arrays.items():
        held = sum(other.size for other in parts[-1].values()) if parts else MOST_JOINED
        if held + array.size > MOST_JOINED // 16:
            parts.append({})
        parts[-1][name] = array
    return parts


def recut(vectors: Sequence[Vector], like: Sequence[Vector]) -> list[Vector]:
    """The same numbers end to end, as vectors of other lengths."""
    *ends, _ = accumulate(vector.size for vector in like)
    return [*mx.split(mx.concatenate([*vectors]), ends)]


def _halves(arrays: Arrays) -> list[Arrays]:
    """The arrays in order, cut where half of their numbers are passed; one alone stays whole."""
    half, parts = sum(array.size for array in arrays.values()) / 2, ({}, {})
    before = 0
    for name, array in arrays.items():
        parts[before >= half][name] = array
        before += array.size
    return [part for part in parts if part]


def joined(arrays: Arrays) -> Vector:
    """All numbers of some arrays, one array after the other."""
    return mx.concatenate([array.reshape(-1) for array in arrays.values()])


def parted(vector: Vector, like: Arrays) -> Arrays:
    """The inverse of `joined`: arrays of the names and shapes of `like`."""
    *ends, _ = accumulate(array.size for array in like.values())
    pairs = zip(like.items(), mx.split(vector, ends), strict=True)
    return {name: part.reshape(array.shape) for (name, array), part in pairs}


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that one optimizer moves at one learning rate."""

    name: str
    claims: Callable[[str, mx.array], bool]  # whether a parameter, by name, belongs to it
    optimizer: AdamW | Muon
    peak: float  # learning rate at the schedule's top
    parameters: tuple[str, ...] = ()  # the names of those that do

    def own(self, arrays: Arrays) -> Arrays:
        """Its own among some arrays named like the parameters."""
        return {name: arrays[name] for name in self.parameters}


class GroupedOptimizer:
    """Several optimizers, one per group of parameters, under one schedule.

    Args:
        model: Its parameters are divided among the groups; groups left empty are dropped.
        config: The recipe.
        n_heads: Heads H: the merged S moves its scores about H times further per Adam step than
            the factors do, so its learning rate starts at lr / H.
        width: The residual stream's; with `base_width`, matrices that AdamW moves and x is
            multiplied by, S among them, have the rate lr base_width / width.

    Raises:
        ConfigError: The factors of S alone are to decay, and the model has none.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, n_heads: int, width: int):
        parameters = named_arrays(model.trainable_parameters())
        self.groups: list[Group] = []
        self._left: Arrays = {}
        for group in _groups(config, n_heads, width):
            claimed = {n: a for n, a in parameters.items() if group.claims(n, a)}
            parameters = {n: a for n, a in parameters.items() if n not in claimed}
            if claimed:
                packed = group.optimizer.packed(claimed)
                group.optimizer.init({str(i): array for i, array in enumerate(packed)})
                self.groups.append(replace(group, parameters=tuple(claimed)))
            elif group.name == "factors":
                raise ConfigError(
                    "decay=query-key: this attention has neither W_query nor W_key to decay; "
                    "use --decay matrices"
                )
        self.hold(model)
        self.leave(model)

    def hold(self, model: nn.Module) -> None:
        """Take over the model's weights if anybody but `update` has set them; before each step."""
        parameters = named_arrays(model.trainable_parameters())
        if any(array is not self._left.get(name) for name, array in parameters.items()):
            for group in self.groups:
                parameters |= group.optimizer.hold(group.own(parameters))
            model.update(tree_unflatten(list(parameters.items())))

    def leave(self, model: nn.Module) -> None:
        """Remember the model's weights as those of `update`; after each step.

        A compiled step makes new arrays of them, so this is not for `update` to do.
        """
        self._left = named_arrays(model.trainable_parameters())

    def schedule(self, factor: float) -> None:
        """Set every group's learning rate to its peak times the factor."""
        for group in self.groups:
            group.optimizer.learning_rate = mx.array(group.peak * factor)

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
        squares = [_some_at_a_time(lambda a: mx.square(a).sum(), arrays) for arrays in packed]
        norm = mx.sqrt(sum(chain.from_iterable(squares), start=mx.array(0.0)))
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

    @property
    def held(self) -> list[list[mx.array]]:
        """The weights as the optimizers hold them: the lists themselves."""
        return [group.optimizer.held for group in self.groups]


def is_hidden_matrix(name: str, array: mx.array) -> bool:
    """Whether a parameter is a matrix inside a block that multiplies: tables are looked up."""
    in_block = name.startswith("trf_blocks.") and name.endswith("weight")
    return array.ndim == 2 and in_block and "table" not in name


def _is_factor(name: str, _: mx.array) -> bool:
    """Whether a parameter is a factor of S = W_query W_key^T."""
    return name.endswith(("att.W_query.weight", "att.W_key.weight"))


def _multiplies(name: str, array: mx.array) -> bool:
    """Whether a product with a parameter sums over the width."""
    return is_hidden_matrix(name, array) or name == "out_head.weight"


def _groups(config: TrainConfig, n_heads: int, width: int) -> list[Group]:
    """The groups in the order in which they claim parameters; the last takes the rest.

    A step of Adam moves every number of a matrix by the rate, whatever its size, and x W by that
    times the width: divided by it, one rate serves every width (Tensor Programs V,
    arXiv:2203.03466, for Adam). Muon's steps have a norm that does not depend on it. Decay of both
    factors of S is a penalty on the nuclear norm of S (Kobayashi, Akram and von Oswald,
    arXiv:2410.23819), so it may be had alone.
    """

    def adamw(decay: float) -> AdamW:
        return AdamW(config.lr, [config.beta1, config.beta2], weight_decay=decay)

    lr, decay = config.lr, config.weight_decay
    product_lr = lr * (config.base_width / width if config.base_width else 1.0)
    merged_peak = product_lr * (config.merged_lr or 1 / n_heads)
    own = 0.0 if config.decay == "query-key" else decay  # of matrices
    rest = decay if config.decay == "all" else 0.0
    groups = [
        Group("merged", lambda name, _: name.endswith("att.S.weight"), adamw(own), merged_peak),
        Group("matrices", lambda _, array: array.ndim >= 2, adamw(own), lr),
        Group("rest", lambda *_: True, adamw(rest), lr),
    ]
    if config.base_width:
        groups.insert(1, Group("products", _multiplies, adamw(own), product_lr))
    if config.decay == "query-key":
        groups.insert(0, Group("factors", _is_factor, adamw(decay), product_lr))
    if config.optimizer == "muon":
        muon = Muon(config.muon_lr, config.muon_momentum)
        groups.insert(0, Group("hidden", is_hidden_matrix, muon, config.muon_lr))
    return groups
