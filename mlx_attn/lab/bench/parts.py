"""Where the time goes: each part of a model run by itself, beside the whole.

A part is run alone on inputs of the right shape, with its gradients where the whole has them, in
turns with the whole. What the parts leave over is everything else: norms, embeddings, shortcuts,
gathering a batch, clipping a gradient, and what the host does in between.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from mlx_attn.exponentials import cross_entropy
from mlx_attn.lab.bench.timing import Subject, in_turns
from mlx_attn.lab.bench.work import Work, decoded_lengths, still_model, train_step
from mlx_attn.model import GPT, GPTConfig
from mlx_attn.streams import share_of_cores, side_by_side
from mlx_attn.training.config import TrainConfig
from mlx_attn.trees import named_arrays

REST = "everything else"
FEWEST_ROUNDS = 3

Parts = Mapping[str, Subject]
Inputs = tuple[mx.array, ...]
"""x, and what else a part needs."""
Function = Callable[[Inputs], mx.array]
Layer = tuple[nn.Module, Function]
"""A module that has weights, and the function that it computes."""
Passing = Callable[[Sequence[Layer], Sequence[Inputs]], Subject]


def shares(work: Work, parts: Parts, seconds: float) -> dict[str, float]:
    """Each part's share of the work's time; with everything else they add up to 1.

    Args:
        work: The whole.
        parts: What is run once in each of its steps.
        seconds: About how long to measure.
    """
    timings = in_turns({REST: work.run, **parts}, seconds, FEWEST_ROUNDS)
    whole = timings.pop(REST)
    found = {part: timing.over(whole).median * work.steps for part, timing in timings.items()}
    return {**found, REST: 1 - sum(found.values())}


def training_parts(config: GPTConfig, training: TrainConfig) -> Parts:
    """The parts of a training step."""
    step = train_step(config, training)
    gradients = {name: mx.ones_like(a) * 1e-3 for name, a in named_arrays(step.model).items()}
    mx.eval(gradients)
    tree = tree_unflatten(list(gradients.items()))

    def optimizer() -> None:
        step.optimizer.update(step.model, tree)
        mx.eval(step.state)

    parts = _model_parts(step.model, training.batch_size, config.context_length, _with_gradients)
    return {**parts, "optimizer": optimizer}


def forward_parts(config: GPTConfig, training: TrainConfig) -> Parts:
    """The parts of a forward pass."""
    return _model_parts(still_model(config), training.batch_size, config.context_length, _alone)


def decoding_parts(config: GPTConfig, training: TrainConfig) -> Parts:
    """The parts of decoding one token, in the middle of the text."""
    model, (prompt, new) = still_model(config), decoded_lengths(config)
    length = prompt + new // 2
    caches = model.new_caches()
    mx.eval(model(mx.zeros((1, length), mx.uint32), caches))
    x = _normal(1, 1, config.emb_dim)

    def attention() -> None:
        mx.eval(
            [block.att(x, cache) for block, cache in zip(model.trf_blocks, caches, strict=True)]
        )
        for cache in caches:
            cache.trim(length)

    return {
        "attention": attention,
        "MLP": lambda: mx.eval([block.ff(x) for block in model.trf_blocks]),
        "head": lambda: mx.eval(mx.argmax(_head(model)(x))),
    }


PARTS: dict[str, Callable[[GPTConfig, TrainConfig], Parts]] = {
    "train": training_parts,
    "forward": forward_parts,
    "decode": decoding_parts,
}
"""How each kind of work is taken apart."""


def _model_parts(model: GPT, B: int, T: int, passing: Passing) -> dict[str, Subject]:
    config = model.config
    targets = mx.random.randint(0, config.vocab_size, (B, T))
    head = _head(model)

    def loss(inputs: Inputs) -> mx.array:
        x, targets = inputs
        return cross_entropy(head(x).astype(mx.float32), targets).mean()

    owner = model.tok_emb if config.tied_head else model.out_head
    inputs = shares_of(B, _normal(B, T, config.emb_dim), targets)
    blocks = model.trf_blocks
    return {
        "attention": passing(
            [(block.att, lambda i, b=block: b.att(i[0])) for block in blocks], inputs
        ),
        "MLP": passing([(block.ff, lambda i, b=block: b.ff(i[0])) for block in blocks], inputs),
        "head and loss": passing([(owner, loss)], inputs),
    }


def shares_of(B: int, *arrays: mx.array) -> list[Inputs]:
    """Arrays divided along their batch as a training step divides it."""
    shares = share_of_cores(B)
    divided = [array.split(shares) for array in arrays]
    mx.eval(divided)
    return list(zip(*divided, strict=True))


def _alone(layers: Sequence[Layer], inputs: Sequence[Inputs]) -> Subject:
    def run() -> None:
        for _, function in layers:
            mx.eval(side_by_side(lambda part, f=function: f(part), inputs))

    return run


def _with_gradients(layers: Sequence[Layer], inputs: Sequence[Inputs]) -> Subject:
    """Runs functions of x with the gradients of x and of the weights of the module of each."""
    passes = [(module, named_arrays(module.trainable_parameters()), f) for module, f in layers]
    cotangents = [mx.ones_like(layers[0][1](part)) for part in inputs]
    mx.eval(cotangents)
    parts = [{"inputs": i, "cotangent": c} for i, c in zip(inputs, cotangents, strict=True)]

    def run() -> None:
        for module, weights, function in passes:
            mx.eval(side_by_side(_gradients_of(module, weights, function), parts))
            module.update(tree_unflatten(list(weights.items())))

    return run


def _gradients_of(
    module: nn.Module, weights: Mapping[str, mx.array], function: Function
) -> Callable[[Mapping[str, Any]], Any]:
    def gradients(part: Mapping[str, Any]) -> Any:
        x, *others = part["inputs"]

        def of(x: mx.array, *arrays: mx.array) -> list[mx.array]:
            module.update(tree_unflatten(list(zip(weights, arrays, strict=True))))
            return [function((x, *others))]

        return mx.vjp(of, [x, *weights.values()], [part["cotangent"]])

    return gradients


def _head(model: GPT) -> Callable[[mx.array], mx.array]:
    return model.tok_emb.as_linear if model.config.tied_head else model.out_head


def _normal(*shape: int) -> mx.array:
    x = mx.random.normal(shape)
    mx.eval(x)
    return x
