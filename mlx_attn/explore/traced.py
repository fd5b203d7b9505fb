"""Trace a model as graphs of MLX's primitives, which `web/graph.js` runs in a browser.

`mx.export_function` passes every primitive that a function evaluates to a callback, with its
arguments. The page only runs these graphs, so it also works for a plugin's choice.

A pass is traced for a few text lengths; shorter texts are padded at the end, which a causal model
does not see. The page's switches are further inputs of it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
import numpy as np

from mlx_attn.activations import run_with_cache
from mlx_attn.attention.attention import Attention, causal_mask
from mlx_attn.attention.cache import Positions
from mlx_attn.attention.forms.positions import alibi_bias, unit_rms
from mlx_attn.errors import ConfigError
from mlx_attn.machine.device import forced_path
from mlx_attn.machine.graphs import without_gradients
from mlx_attn.model.gpt import GPT
from mlx_attn.probe.heads import LONGEST

SHORTEST, GROWTH = 16, 1.5

OF_A_LAYER = {
    "before": "x",
    "x": "norm1",
    "q": "att.queries",
    "k": "att.keys",
    "v": "att.values",
    "scores": "att.raw_scores",
    "logits": "att.masked",
    "weights": "att.attn_weights",
    "heads": "att.context_vec",
    "output": "att.out",
    "middle": "x_mid",
    "forward": "ff",
    "after": "x_out",
}
"""The page's names of a layer's activations, and the names in `run_with_cache`."""

PRIMITIVES = """
    Abs Cos Exp Expm1 Floor Ceil Log Log1p LogicalNot Negative Round Sigmoid Sign Sin Sqrt
    Square Tanh AsType Add Divide Equal NotEqual FloorDivide Greater GreaterEqual Less
    LessEqual LogAddExp LogicalAnd LogicalOr Maximum Minimum Multiply Power Remainder
    Subtract Select Broadcast ExpandDims Flatten Full Reshape Squeeze Split Slice Transpose
    Unflatten Arange ArgPartition ArgReduce ArgSort BitwiseBinary Concatenate Gather
    GatherAxis Pad Scatter SliceUpdate AddMM LogSumExp Matmul Reduce Scan Partition Sort
    Softmax
"""
"""The primitives that `web/graph.js` computes; a test tries each of them in a browser."""

_OF_NUMBERS = ("Add", "Multiply", "Maximum", "Minimum", "Reduce", "Scan", "Select")
"""Primitives whose result is boolean if their inputs are; the page has only numbers."""

Facts = dict[str, Any]


@dataclass(slots=True)
class Constants:
    """The constant arrays of all graphs, each stored once."""

    weights: list[np.ndarray]  # the model's own, which a page may round to float16
    others: list[np.ndarray] = field(default_factory=list)  # computed, such as a mask
    _places: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def __post_init__(self):
        for place, array in enumerate(self.weights):
            self._places.setdefault((array.shape, array.tobytes()), place)

    def place_of(self, array: np.ndarray) -> int:
        """Return the index of an array: in `weights`, or -1 - its index in `others`."""
        content = array.shape, array.tobytes()
        if content not in self._places:
            self.others.append(array)
            self._places[content] = -len(self.others)
        return self._places[content]


def lengths_of(context_length: int) -> list[int]:
    """Return the text lengths of the traced passes, the longest last."""
    lengths = [min(context_length, LONGEST)]
    while lengths[0] > SHORTEST:
        shorter = int(lengths[0] / GROWTH)
        lengths.insert(0, max(shorter - shorter % -8, SHORTEST))
    return lengths


def traced_model(model: GPT, constants: Constants) -> Facts:
    """Return the graphs of a model; `constants` collects their arrays.

    Raises:
        ConfigError: MLX cannot write a choice as a graph, or the page lacks one of its primitives.
    """
    lengths, layers = lengths_of(model.config.context_length), range(len(model.trf_blocks))
    names = ["logits", *(f"{layer}.{name}" for layer in layers for name in OF_A_LAYER)]
    return {
        "lengths": lengths,
        "passes": [trace(_pass(model), names, _like_inputs(model, T), constants) for T in lengths],
        "layers": [_layer_graphs(model, layer, lengths, constants) for layer in layers],
    }


# The functions to trace.


class _Last:
    """An edit that changes nothing and records its last input."""

    value: mx.array

    def __call__(self, value: mx.array) -> mx.array:
        self.value = value
        return value


def _pass(model: GPT) -> Callable[..., list[mx.array]]:
    """Return a pass of the model with the inputs of `_like_inputs`."""

    def run(tokens: mx.array, *switches: mx.array) -> list[mx.array]:
        length, later, positions, projection, *of_layers = switches
        edits: dict[str, Callable[[mx.array], mx.array]] = {}
        if model.config.position == "learned":
            added = model.pos_emb(mx.arange(tokens.shape[1]))
            edits["embedding"] = lambda x: x - (1 - positions) * added
        for layer, block in enumerate(model.trf_blocks):
            chosen = of_layers[5 * layer : 5 * layer + 5]
            changes = _layer_edits(block.att, chosen, (length, later, positions, projection))
            edits |= {f"trf_blocks.{layer}.{name}": edit for name, edit in changes.items()}
        logits, activations = run_with_cache(model, tokens, edits)
        layers = range(len(model.trf_blocks))
        names = (f"trf_blocks.{layer}.{name}" for layer in layers for name in OF_A_LAYER.values())
        return [logits, *(activations[name] for name in names)]

    return run


def _like_inputs(model: GPT, T: int) -> list[mx.array]:
    """Return arrays with the shapes of all inputs of a pass.

    The tokens; their number; 0 if a token may see later ones, else minus infinity; 1 with
    positions, else 0; 1 with the output projection, else 0; then for each layer: 1 for each active
    head, 1 for each head with scores, 1 / temperature, and the map (a matrix and a vector for each
    head) that cuts the ranks of the scores.
    """
    tokens, scalar = mx.zeros((1, T), dtype=mx.uint32), mx.zeros(())
    _, activations = run_with_cache(model, tokens[:, :1])
    switches = [tokens, scalar, scalar, scalar, scalar]
    for layer in range(len(model.trf_blocks)):
        _, H, _, K = activations[f"trf_blocks.{layer}.att.raw_queries"].shape
        switches += [mx.zeros((H, 1, 1))] * 3 + [mx.zeros((H, K, K)), mx.zeros((H, 1, K))]
    return switches


def _layer_edits(
    layer: Attention, switches: Sequence[mx.array], shared: Sequence[mx.array]
) -> dict[str, Callable[[mx.array], mx.array]]:
    """Return the edits of a layer's activations by the switches, by name."""
    on, scored, cooling, rank, rank_shift = switches
    length, later, positions, projection = shared
    inputs, scores, heads, queries, keys = _Last(), _Last(), _Last(), _Last(), _Last()

    def where(raw: _Last) -> Callable[[mx.array], mx.array]:
        bare = unit_rms if layer.config.qk_norm else lambda y: y
        return lambda y: positions * y + (1 - positions) * bare(raw.value)

    edits = {
        "norm1": inputs,
        "att.raw_queries": lambda q: queries(q @ rank + rank_shift),
        "att.raw_keys": keys,
        "att.raw_scores": lambda y: scored * y,
        "att.attn_scores": scores,
        "att.masked": lambda y: (
            cooling * (scores.value + _mask(layer, y.shape[-1], length, later, positions))
        ),
        "att.context_vec": lambda y: heads(on * y),
        "att.out": lambda y: _output(layer, heads.value, inputs.value, projection),
    }
    if layer.config.rotates:
        edits |= {"att.queries": where(queries), "att.keys": where(keys)}
    if layer.config.cross_layer == "reader":  # its keys come from a layer that has edited them
        edits.pop("att.keys", None)
    return edits


def _mask(
    layer: Attention, T: int, length: mx.array, later: mx.array, positions: mx.array
) -> mx.array:
    """Return the mask of a layer; tokens from `length` on are padding."""
    places = mx.arange(T)
    all_places = Positions(0, places, 0, places)
    sees = causal_mask(all_places, layer.config.window) == 0
    mask = mx.where(sees, 0.0, mx.where(places < length, later, -mx.inf))
    if not layer.slopes:
        return mask
    return mask + positions * alibi_bias(mx.array(layer.slopes, mx.float32), all_places)


def is_square(layer: Attention) -> bool:
    """Return True if a layer's joined heads are as wide as its output, so could replace it."""
    if "out_proj" not in layer:
        return False
    rows, columns = layer.out_proj.weight.shape
    return rows == columns


def _output(layer: Attention, heads: mx.array, x: mx.array, projection: mx.array) -> mx.array:
    """Return a layer's output; if `projection` is 0, the joined heads without out_proj."""
    y = layer.output(heads, x)
    if not is_square(layer):
        return y
    out_proj, untyped = layer.out_proj, cast(Any, layer)
    try:
        untyped.out_proj = lambda joined: joined
        joined = layer.output(heads, x)
    finally:
        untyped.out_proj = out_proj
    return projection * y + (1 - projection) * joined


def _layer_graphs(model: GPT, layer: int, lengths: Sequence[int], constants: Constants) -> Facts:
    """Return separate graphs of one layer's maps, from which the page derives S_h and V_h O_h."""
    attention, C = model.trf_blocks[layer].att, model.config.emb_dim
    x = mx.zeros((1, C + 1, C))

    def maps(x: mx.array) -> list[mx.array]:
        T, config = x.shape[1], attention.config
        # A layer may read the keys and values of an earlier one.
        widths = config.head_dim, config.value_dim
        keys, values = (mx.zeros((1, config.n_kv_heads, T, D)) for D in widths)
        carry = {"shared": (keys, values, Positions.of_text(T))}
        q, k = attention.score(x, None, carry)
        return [q, k, attention.value(x, k, None, carry)]

    q, _, v = maps(x)

    def output(heads: mx.array, x: mx.array, projection: mx.array) -> list[mx.array]:
        return [_output(attention, heads, x, projection)]

    def like(T: int) -> list[mx.array]:
        return [mx.zeros((1, q.shape[1], T, v.shape[-1])), mx.zeros((1, T, C)), mx.zeros(())]

    outputs = {T: trace(output, ["y"], like(T), constants) for T in {*lengths, C + 1}}
    graph = trace(maps, ["q", "k", "v"], [x], constants)
    return {"maps": graph, "output": outputs, "width": q.shape[-1]}


# Tracing.


def trace(
    function: Callable[..., list[mx.array]],
    names: Sequence[str],
    like: Sequence[mx.array],
    constants: Constants,
) -> Facts:
    """Return the graph of a function.

    Args:
        function: Returns one array for each name.
        names: The page's names of its outputs.
        like: Arrays of the shapes and types of its inputs.
        constants: Collects the constant arrays that the function uses.

    Returns:
        `inputs`, their ids and shapes; `constants`, ids and places; `nodes`, each a primitive, its
        arguments, the ids of its inputs, and its outputs' ids and shapes; `outputs`, ids by name.

    Raises:
        ConfigError: MLX cannot write the function, or the page lacks one of its primitives.
    """
    events: list[dict[str, Any]] = []
    mx.disable_compile()  # a fused function of weights only has no form on disk
    try:
        # On the CPU's stream MLX writes fused primitives as their elementary steps.
        with forced_path("gpu"), mx.stream(mx.cpu):
            mx.export_function(events.append, without_gradients(function), *like)
    except ValueError as error:
        raise ConfigError(f"MLX cannot write this model as a graph ({error})") from error
    finally:
        if "MLX_DISABLE_COMPILE" not in os.environ:
            mx.enable_compile()
    used = {event["name"] for event in events if event["type"] == "primitive"}
    if missing := sorted(used - {*PRIMITIVES.split()}):
        raise ConfigError(
            f"a choice of this model uses MLX's primitive {missing[0]}, which a page in a browser "
            "does not have: use 'mlx-attn probe' or 'mlx-attn sample'"
        )
    return _graph(events, names, constants)


def _graph(events: Sequence[dict[str, Any]], names: Sequence[str], constants: Constants) -> Facts:
    ids: dict[str, int] = {}
    graph: Facts = {"nodes": []}

    def number(name: str) -> int:
        return ids.setdefault(name, len(ids))

    for event in events:
        match event["type"]:
            case "inputs":
                graph["inputs"] = [[number(name), shape] for name, shape, _ in event["inputs"]]
            case "constants":
                arrays = ((n, np.array(y.astype(mx.float32))) for n, y in event["constants"])
                graph["constants"] = [[number(n), constants.place_of(y)] for n, y in arrays]
            case "outputs":
                outputs = zip(names, event["outputs"], strict=True)
                graph["outputs"] = {name: number(output[0]) for name, output in outputs}
            case "primitive":
                inputs = [number(name) for name, *_ in event["inputs"]]
                outputs = [[number(name), shape] for name, shape, _ in event["outputs"]]
                arguments = [_plain(argument) for argument in event["arguments"]]
                graph["nodes"].append([event["name"], arguments, inputs, outputs])
                if event["name"] in _OF_NUMBERS and event["outputs"][0][2] == mx.bool_:
                    graph["nodes"].append(["AsType", ["bool"], [outputs[0][0]], outputs])
    return graph


def _plain(argument: Any) -> Any:
    """Convert an argument of a primitive to JSON values."""
    if isinstance(argument, list | tuple):
        return [_plain(part) for part in argument]
    if isinstance(argument, mx.Dtype):
        kind = "float" if mx.issubdtype(argument, mx.floating) else "int"
        return "bool" if argument == mx.bool_ else kind
    return argument
