"""The declaration of a choice: a formula, weights, a function, and the facts of its kind.

The kinds are the three maps of attention, the two hooks between score and value, and positions in
the heads. `maps` and `forms` register the package's choices when they are imported, a user's file
does the same. Laws compare a user's facts with the numbers that its functions compute.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from inspect import unwrap
from typing import Any, ClassVar

from mlx_attn.keys import check_word

OfConfig = Callable[[Any], Any]
"""A function of an `AttentionConfig`."""
OfLayer = Callable[..., Any]
"""A function of an `Attention`, whose attributes hold the weights by name, and of arrays."""

MAPS = {
    "score": "separate",
    "value": "linear",
    "output": "linear",
    "logits": "none",
    "mixing": "softmax",
}
"""What a variant chooses, three maps and two hooks between score and value, with the standard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The facts of every kind of choice."""

    map: ClassVar[str]

    name: str  # the word in a configuration
    formula: str  # in the field's letters
    source: str = ""  # the paper, or the section of the book
    apply: OfLayer  # computes the map
    # Makes each trained part by name: a Linear layer, an array, or None if a configuration needs
    # none.
    weights: Mapping[str, OfConfig] = field(default_factory=dict)
    # Starting weights by name, if they are not drawn like other Linear layers. Of these, "out_proj"
    # ends a branch.
    init: Callable[[Any, Callable[..., Any]], Mapping[str, Any]] | None = None
    # The weights that multiply x, if nothing else reads x: they can absorb the gain of the norm
    # before. None: x is read in another way.
    input_weights: tuple[str, ...] | None = None
    # Per token at full context, in addition to its matrices, the scores and the weighted sum.
    multiply_adds: Callable[[Any], int] = lambda config: 0
    # Why a configuration cannot use it, and the way out; empty if it can.
    refuses: Callable[[Any], str] = lambda config: ""

    @property
    def foreign_functions(self) -> list[Callable[..., Any]]:
        """Its functions that a user wrote; the package's own choices have none."""
        facts = [getattr(self, fact.name) for fact in fields(self)]
        functions = [unwrap(fact) for fact in (*facts, *self.weights.values()) if callable(fact)]
        return [f for f in functions if not f.__module__.startswith("mlx_attn.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMap(Choice):
    """A choice of the queries and keys: `score(layer, x) -> q, k`."""

    map = "score"

    # The number of heads of its keys, and their width.
    shape: OfConfig = lambda config: (config.n_kv_heads, config.head_dim)
    cache: str = "kv"  # of a token, "kv": key and value; "x": only the key, which is x
    affine: bool = True  # linear up to a bias, as conversions and spectra need
    queries_per_head: int = 1
    carries: bool = False  # it reads arrays of earlier layers: `score(layer, x, carry)`

    def __post_init__(self):
        check_word("cache", self.cache, ("kv", "x"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMap(Choice):
    """A choice of the values: `value(layer, x, k) -> v`."""

    map = "value"

    # The number of heads of its values, and their width.
    shape: OfConfig = lambda config: (config.n_kv_heads, config.value_dim)
    after: OfLayer | None = None  # the same map applied to softmax_h x, which gives the same heads
    # Of a token, "kv": key and value; "k": only the key, which this map reads; "x": only the key,
    # which is x. If score or value keep only the key, so does the layer.
    cache: str = "kv"
    affine: bool = True  # linear up to a bias
    reads_keys: bool = False  # it computes values from keys
    carries: bool = False  # it reads arrays of earlier layers: `value(layer, x, k, carry)`

    def __post_init__(self):
        check_word("cache", self.cache, ("kv", "x", "k"))
        object.__setattr__(self, "reads_keys", self.reads_keys or self.cache == "k")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMap(Choice):
    """A choice of the output: `output(layer, heads, x) -> y`."""

    map = "output"

    affine: bool = True  # linear in the heads up to a bias
    contains_value: ValueMap | None = None  # in the place of the value map, if it computes values


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook(Choice):
    """A change of scores or weights, between score and value."""

    # A constant added to all scores of a query changes no weight, so that the key's bias cancels.
    shift_invariant: bool = False
    # Numbers of x that decoding also caches, [B, heads, T, width]; the hook receives the numbers of
    # all tokens as its last argument.
    remembers: OfLayer | None = None
    # It needs the memory of all earlier tokens even if a window hides their keys. The layer's cache
    # then holds all of them.
    remembers_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsHook(Hook):
    """A change of the scores before the mask: `logits(layer, s) -> s`."""

    map = "logits"

    # If it only multiplies the scores of each attention map: these factors, so that W_query can
    # absorb them.
    score_factor: OfLayer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing(Hook):
    """A choice of the attention weights: `mixing(layer, s) -> weights`."""

    map = "mixing"

    # The weights of every query add up to 1, so that values may be computed after the weighted sum
    # and their bias is a constant.
    sums_to_one: bool = False
    reads_keys: bool = False  # it reads the queries and keys too: `mixing(layer, s, q, k)`
    # The same heads from a state of fixed size, `recurs(layer, q, k, v, memory, state) -> heads,
    # state`, without `memory` if it remembers nothing, and with None at the start of a text.
    # Decoding then caches the state, one array, and no tokens.
    recurs: OfLayer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionInHeads(Choice):
    """Positions in the heads: `position(layer, y, positions) -> y`, of queries and of keys."""

    map = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Choice):
    """A change of queries, keys and values: `short_conv(layer, part, y, cache) -> y`."""

    map = "short_conv"


_KINDS = ScoreMap, ValueMap, OutputMap, LogitsHook, Mixing, PositionInHeads, Convolution
KINDS: dict[str, type[Choice]] = {kind.map: kind for kind in _KINDS}
