"""Decoding: texts of any length in caches of fixed length, and one compiled step a token.

A step is a function of arrays, from the newest tokens to the next ones: embeddings, blocks, caches
written in place, logits, sampler. No intermediate result returns to Python.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, cast

import mlx.core as mx
from jaxtyping import Float, Integer
from mlx.utils import tree_unflatten

from mlx_attn.arrays import Arrays, named_arrays
from mlx_attn.attention.cache import KVCache
from mlx_attn.errors import RunError
from mlx_attn.machine.graphs import Graph
from mlx_attn.machine.layers import layers_for
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.samplers import Sampler

CHUNK = 512  # tokens of a prompt that are read at once: more would take more memory
SHORTEST = 256  # caches are this long, or twice, four times, ... as long, up to the context


def tokens_that_fit(length: int, context_length: int) -> int:
    """Return how many of a text's last tokens to read: all if they fit, else half a context."""
    return length if length <= context_length else context_length // 2


class TokenStep:
    """One step of a model as a graph that runs without Python; it may serve many texts.

    The weights are inputs of the graph: they are not copied, and never those that a model had once.

    Args:
        model: In evaluation mode.
    """

    def __init__(self, model: GPT):
        self.model = model
        self._graphs: dict[Any, Graph] = {}
        self._runs: defaultdict[Any, Iterator[int]] = defaultdict(lambda: count(1))
        self._kinds: list[tuple[Any, ...]] = []  # names, shapes and types of its weights

    def weights(self, texts: int) -> Arrays:
        """Return the weights that the model has now, as the step of so many texts takes them."""
        kinds = [(name, a.shape, a.dtype) for name, a in named_arrays(self.model).items()]
        if kinds != self._kinds:  # as after `nn.quantize`: the graphs take others
            self._graphs, self._kinds = {}, kinds
        with layers_for(texts, self.model):
            arrays = named_arrays(self.model)
        mx.eval(arrays)
        return arrays

    def __call__(
        self,
        weights: Arrays,
        tokens: Integer[mx.array, "B 1"],
        caches: Sequence[KVCache],
        sampler: Sampler,
    ) -> Integer[mx.array, "B 1"]:
        """Return the tokens after `tokens`, which are written into the caches."""
        # All layers have read the same number of tokens.
        offset, buffers = caches[0].offset, [array for c in caches for array in c.arrays]
        # Everything that changes is an argument; the graph itself holds only constants.
        arrays = [*weights.values(), tokens, mx.array(offset), *buffers, *sampler.state.values()]
        slots = tuple(cache.slots for cache in caches)
        # MLX's streams belong to a thread, and so does a graph.
        key = (sampler.structure, tokens.shape, slots, threading.get_ident())
        # Traced once for each batch size, cache length and sampler.
        if key not in self._graphs:
            empty = [(cache.new(), len(cache.arrays)) for cache in caches]
            function = partial(self._step, tuple(weights), empty, sampler)
            # Caches of other lengths need the same code.
            runs = self._runs[sampler.structure, tokens.shape]
            self._graphs[key] = Graph(function, arrays, runs)
        following, *rest = self._graphs[key](*arrays)
        # First the buffers of every cache, then the sampler's state.
        updated = iter(rest)
        for cache in caches:
            cache.arrays, cache.offset = [*islice(updated, len(cache.arrays))], offset + 1
        sampler.state = dict(zip(sampler.state, updated, strict=True))
        return following

    def _step(
        self,
        names: Sequence[str],
        empty: Sequence[tuple[KVCache, int]],
        sampler: Sampler,
        *arrays: mx.array,
    ) -> list[mx.array]:
        """Return the step as a function of only arrays."""
        # In the order in which `__call__` packs them.
        weights, given = arrays[: len(names)], iter(arrays[len(names) :])
        tokens, offset = next(given), next(given)
        caches = [cache.new(offset, islice(given, n)) for cache, n in empty]
        with layers_for(len(tokens), self.model):
            self.model.update(tree_unflatten(list(zip(names, weights, strict=True))))
            # [B, 1, V] -> [B, V]
            logits = self.model(tokens, caches)[:, -1].astype(mx.float32)
        tokens, state = sampler.draw(logits, tokens, dict(zip(sampler.state, given, strict=True)))
        return [tokens, *(array for cache in caches for array in cache.arrays), *state.values()]


class DecodingState:
    """The model's caches over the last tokens of B texts of equal length.

    Texts that do not fit into the context are read again from their last context_length / 2 tokens,
    as texts that start there. So they may be of any length, for every kind of position, and at
    least half of the context is always used.
    """

    def __init__(self, step: TokenStep):
        self.model = step.model
        self.length = 0
        self.caches: list[KVCache] = []
        self._step = step
        self._weights: Arrays = {}
        self._read: list[mx.array] = []

    def read(self, tokens: Integer[mx.array, "B N"]) -> Float[mx.array, "B V"]:
        """Return the logits of the tokens after `tokens`, which continue those read before."""
        # Read in chunks: attention over a whole prompt would store [T, T] scores.
        tokens, x = self._fit(tokens), mx.zeros(0)
        for start in range(0, tokens.shape[1], CHUNK):
            mx.eval(x, [cache.arrays for cache in self.caches])
            x = self.model.features(tokens[:, start : start + CHUNK], self.caches)
        # Only the last position's logits are needed: [B, 1, C] -> [B, V].
        return self.model.head(x[:, -1:])[:, -1].astype(mx.float32)

    def following(
        self, tokens: Integer[mx.array, "B 1"], sampler: Sampler
    ) -> Integer[mx.array, "B 1"]:
        """Return the tokens after `tokens`, which continue those read before."""
        # The next token does not fit: read the last half of the context again.
        if self.length == self.model.config.context_length:
            return sampler(self.read(tokens), tokens)
        self._fit(tokens)
        self._weights = self._weights or self._step.weights(len(tokens))
        return self._step(self._weights, tokens, self.caches, sampler)

    def repeat(self, count: int) -> None:
        """Turn the text that was read into several equal ones."""
        self._read = [mx.repeat(tokens, count, axis=0) for tokens in self._read]
        for cache in self.caches:
            cache.arrays = [mx.repeat(array, count, axis=0) for array in cache.arrays]

    def _fit(self, tokens: mx.array) -> mx.array:
        """Make room for tokens; return the tokens to read: half a context if they overflow it."""
        # All tokens are remembered, in case a part of them has to be read again.
        self._read.append(tokens)
        self.length += tokens.shape[1]
        context = self.model.config.context_length
        fitting = tokens_that_fit(self.length, context)
        if fitting < self.length:
            tokens = mx.concatenate(self._read, axis=1)[:, -fitting:]
            self._read, self.caches, self.length = [tokens], [], fitting
        # ceil(log2(ceil(length / SHORTEST))): few lengths, because every length is another graph.
        doublings = (-(-self.length // SHORTEST) - 1).bit_length()
        room = min(SHORTEST << doublings, context)
        self.caches = self.caches or self.model.new_caches(room)
        if room > self.caches[0].length:
            for cache in self.caches:
                cache.reserve(room)
        return tokens


def decode(state: DecodingState, prompt: Sequence[int], sampler: Sampler) -> Iterator[list[int]]:
    """Yield the tokens after a prompt, one of each text at a time, without end.

    Step n + 1 is started before the tokens of step n are read, so that the device does not wait for
    Python.

    Raises:
        RunError: The logits are not numbers.
    """
    newest = mx.array([prompt], mx.uint32)
    # The prompt is read once, as a batch of one text, and then repeated.
    logits = state.read(newest)
    if mx.isnan(logits).any().item():
        raise RunError("the model's logits are not numbers: its training diverged; train it again")
    B = len(sampler.seeds)
    state.repeat(B)
    tokens = sampler(mx.repeat(logits, B, axis=0), mx.repeat(newest, B, axis=0))
    mx.async_eval(tokens)
    while True:
        # Lazily, from tokens that the device may still be computing.
        following = state.following(tokens, sampler)
        mx.async_eval(following)
        yield [token for (token,) in cast(list[list[int]], tokens.tolist())]
        tokens = following


def greedy_tokens(step: TokenStep, prompt: Sequence[int], count: int) -> list[int]:
    """Return the likeliest tokens after a prompt, one after the other."""
    tokens = decode(DecodingState(step), prompt, Sampler(SamplerConfig(temp=0.0)))
    return [token for (token,) in islice(tokens, count)]
