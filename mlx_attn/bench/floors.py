"""The matrix products of a model, counted from its configuration, and their time alone: the floor.

Nothing that computes the same numbers with the same products is faster than the products
themselves, whatever else it does, so a step's time is read as a multiple of theirs. Products of an
optimizer such as Muon are not the model's and are left out.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from mlx_attn import blas
from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention, InputMemory, memory_of, values_first
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.maps import SCORES, LinearValue, value_of
from mlx_attn.bench.timing import Subject, in_turns
from mlx_attn.cpu import cross_entropy, num_shards, parallel_map, single_stream
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.generate import DecodingState, decode
from mlx_attn.sampling.samplers import Sampler, SamplerConfig
from mlx_attn.training.batches import EveryToken, ResidentTokens, window_losses
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.training.step import TrainStep


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products of [rows, inner] with [inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def multiply_adds(self) -> int:
        """Multiplications, each with its addition."""
        return self.batch * self.rows * self.inner * self.columns


@dataclass(frozen=True, slots=True)
class Reading:
    """B sequences of which the model reads T_q tokens, the last of T_k."""

    B: int
    T_q: int
    T_k: int


def model_products(config: GPTConfig, reading: Reading) -> Counter[Product]:
    """The products of one forward pass, each with how often it occurs."""
    B, T_q = reading.B, reading.T_q
    rows = B * T_q
    layer = Counter(attention_products(config.attention(), reading))
    layer[Product(1, rows, config.emb_dim, config.hidden_dim)] += 1
    layer[Product(1, rows, config.hidden_dim, config.emb_dim)] += 1
    products = Counter({product: n * config.n_layers for product, n in layer.items()})
    products[Product(1, rows, config.emb_dim, config.vocab_size)] += 1
    return products


def attention_products(config: AttentionConfig, reading: Reading) -> Iterator[Product]:
    """The products of one attention layer: its maps, the scores and the weighted sum."""
    B, T_q, T_k = reading.B, reading.T_q, reading.T_k
    after = isinstance(memory_of(config), InputMemory) and not values_first(config, T_q, T_k, False)
    for name, weight in named_arrays(Attention(config).trainable_parameters()).items():
        if name.endswith("weight") and not (after and name.startswith("W_value")):
            columns, inner = weight.shape
            rewritten = name.startswith("W_value") and isinstance(memory_of(config), InputMemory)
            yield Product(1, B * (T_k if rewritten else T_q), inner, columns)
    H, value = config.n_heads, value_of(config)
    key_heads, key_width = SCORES[config.score].key_shape(config)
    yield Product(B * key_heads, H // key_heads * T_q, key_width, T_k)
    value_heads, value_width = value.shape(config)
    if after:
        value_heads, value_width = 1, config.d_in
    yield Product(B * value_heads, H // value_heads * T_q, T_k, value_width)
    if after and isinstance(value, LinearValue):
        yield Product(B * H, T_q, config.d_in, config.value_dim)


def multiply_adds(products: Counter[Product], backward: bool) -> int:
    """Those of a forward pass, or with the two products of each one's gradient as well."""
    forward = sum(product.multiply_adds * n for product, n in products.items())
    return 3 * forward if backward else forward


def floors(
    config: GPTConfig, reading: Reading, backward: bool, steps: int = 1
) -> dict[str, Subject]:
    """Two ways to compute the products and nothing else.

    `whole`, the floor, computes each at its own shape with all threads of the BLAS. `shares`, where
    there are several cores, divides the batch among them as a training step does.

    Args:
        config: The model.
        reading: What it reads.
        backward: Also the two products that give the gradients of both operands of each one.
        steps: How often to do that.
    """
    shares = num_shards(reading.B)
    part = Reading(reading.B // shares, reading.T_q, reading.T_k)
    ways = {"whole": _floor(model_products(config, reading), backward, steps, 1)}
    if shares > 1:
        ways["shares"] = _floor(model_products(config, part), backward, steps, shares)
    return ways


def _floor(products: Counter[Product], backward: bool, steps: int, shares: int) -> Subject:
    operands = {product: [_operands(product) for _ in range(shares)] for product in products}
    mx.eval(list(operands.values()))
    every = [operands[product] for product in products.elements()]
    compute = _times_backward if backward else _product

    def run() -> None:
        if shares == 1:
            blas.use_threads(blas.preload().threads)
        begun: list[list[mx.array]] = []
        for parts in every * steps:
            # Begun one by one, so that no result is kept for longer than it takes.
            begun = parallel_map(compute, parts)
            mx.async_eval(begun)
        mx.eval(begun)

    return run


def _product(operands: Sequence[mx.array]) -> list[mx.array]:
    a, b, _ = operands
    return [a @ b.swapaxes(-1, -2)]


def _times_backward(operands: Sequence[mx.array]) -> list[mx.array]:
    a, b, g = operands
    return [a @ b.swapaxes(-1, -2), g @ b, g.swapaxes(-1, -2) @ a]


def _operands(product: Product) -> list[mx.array]:
    """Left factor, transposed right factor, and the gradient of their product."""
    batch = () if product.batch == 1 else (product.batch,)
    shapes = (
        (product.rows, product.inner),
        (product.columns, product.inner),
        (product.rows, product.columns),
    )
    return [mx.random.normal((*batch, *shape)) for shape in shapes]


TEXT_TOKENS = 100_000
PROMPT = 16
"""Tokens that decoding starts from."""
NEW_TOKENS = 256
"""Tokens that decoding adds, or fewer where the context ends before."""


@dataclass(frozen=True, slots=True)
class Work:
    """Something to time, with what can be counted of it.

    Attributes:
        run: Does it once.
        config: The model.
        reading: What the model reads in one step; when decoding, in the middle of the text.
        backward: Whether gradients are computed too.
        operations: Of the graph of one step: one training step, one pass, one new token.
        steps: Passes through the model: new tokens when decoding, otherwise 1.
    """

    run: Subject
    config: GPTConfig
    reading: Reading
    backward: bool
    operations: Callable[[], Counter[str]]
    steps: int = 1

    @property
    def tokens(self) -> int:
        """Tokens that it reads or writes."""
        return self.reading.B * self.reading.T_q * self.steps

    @property
    def multiply_adds(self) -> int:
        """Those of its matrix products, per token."""
        products = model_products(self.config, self.reading)
        return multiply_adds(products, self.backward) * self.steps // self.tokens


def random_tokens(vocab_size: int, count: int) -> mx.array:
    """A text of random tokens."""
    return mx.random.randint(0, vocab_size, (count,)).astype(mx.uint32)


def training_step(config: GPTConfig, training: TrainConfig) -> Work:
    """One step of the trainer: forward, backward, clipping and the optimizer."""
    B, T = training.batch_size, config.context_length
    step = train_step(config, training)
    starts = mx.random.randint(0, TEXT_TOKENS - T - 1, (B,))
    mx.eval(starts)

    def run() -> None:
        mx.eval(step(starts), step.state)

    def graph() -> Counter[str]:
        result = single_stream(step)(starts)
        state = named_arrays([step.model.state, step.optimizer.state])
        counted = operations(*result, *state.values())
        mx.eval(result, step.state)
        return counted

    return Work(run, config, Reading(B, T, T), True, graph)


def train_step(config: GPTConfig, training: TrainConfig) -> TrainStep:
    """The trainer's step, on a model of its own and a random text."""
    model = GPT(config)
    optimizer = GroupedOptimizer(model, training, config.n_heads)
    optimizer.schedule(1e-3)
    tokens = np.array(random_tokens(config.vocab_size, TEXT_TOKENS))
    objective = EveryToken(ResidentTokens(tokens, config.context_length))
    step = TrainStep(model, optimizer, objective, training)
    mx.eval(step.state)
    return step


def forward_pass(config: GPTConfig, training: TrainConfig) -> Work:
    """The losses of one batch, as validation computes them."""
    B, T = training.batch_size, config.context_length
    model = still_model(config)
    windows = random_tokens(config.vocab_size, B * (T + 1)).reshape(B, T + 1)
    shares = windows.split(num_shards(B))
    mx.eval(windows, shares)
    return Work(
        lambda: mx.eval(parallel_map(lambda share: window_losses(model, share), shares)),
        config,
        Reading(B, T, T),
        False,
        lambda: operations(window_losses(model, windows)),
    )


def decoding(config: GPTConfig, training: TrainConfig) -> Work:
    """One text, token by token, with the cache: the likeliest token each time."""
    model = still_model(config)
    (length, new), prompt = decoded_lengths(config), decoding_prompt(config)

    def run() -> None:
        blas.use_threads(blas.preload().threads)
        for _ in islice(
            decode(DecodingState(model), prompt, Sampler(SamplerConfig(temp=0.0))), new
        ):
            pass
        # The token after the last one is under way.
        mx.synchronize()

    def graph() -> Counter[str]:
        window = DecodingState(model)
        mx.eval(window.read(mx.array(prompt)))
        return operations(window.read(mx.array([0])))

    return Work(run, config, Reading(1, 1, length + new // 2), False, graph, steps=new)


def decoded_lengths(config: GPTConfig) -> tuple[int, int]:
    """Tokens of the prompt, and new tokens."""
    prompt = min(PROMPT, config.context_length // 2)
    return prompt, min(NEW_TOKENS, config.context_length - prompt)


def decoding_prompt(config: GPTConfig) -> list[int]:
    """The tokens that decoding starts from."""
    return [i % config.vocab_size for i in range(decoded_lengths(config)[0])]


def still_model(config: GPTConfig) -> GPT:
    """A model in evaluation mode."""
    model = GPT(config)
    model.eval()
    mx.eval(model.parameters())
    return model


WORKS: dict[str, Callable[[GPTConfig, TrainConfig], Work]] = {
    "train": training_step,
    "forward": forward_pass,
    "decode": decoding,
}
"""The kinds of work by name."""


_OPERATION = re.compile(r'label ="(\w+)", shape=rectangle')


def operations(*outputs: mx.array) -> Counter[str]:
    """The operations that computing these arrays would run, by name.

    Args:
        outputs: Arrays that are not evaluated yet.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "graph.dot"
        mx.export_to_dot(str(file), *outputs)
        return Counter(_OPERATION.findall(file.read_text(encoding="utf-8")))


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
    shares = num_shards(B)
    divided = [array.split(shares) for array in arrays]
    mx.eval(divided)
    return list(zip(*divided, strict=True))


def _alone(layers: Sequence[Layer], inputs: Sequence[Inputs]) -> Subject:
    def run() -> None:
        for _, function in layers:
            mx.eval(parallel_map(lambda part, f=function: f(part), inputs))

    return run


def _with_gradients(layers: Sequence[Layer], inputs: Sequence[Inputs]) -> Subject:
    """Runs functions of x with the gradients of x and of the weights of the module of each."""
    passes = [(module, named_arrays(module.trainable_parameters()), f) for module, f in layers]
    cotangents = [mx.ones_like(layers[0][1](part)) for part in inputs]
    mx.eval(cotangents)
    parts = [{"inputs": i, "cotangent": c} for i, c in zip(inputs, cotangents, strict=True)]

    def run() -> None:
        for module, weights, function in passes:
            mx.eval(parallel_map(_gradients_of(module, weights, function), parts))
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
