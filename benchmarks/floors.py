"""Compare training and a forward pass with the time of only their matrix products.

    python benchmarks/floors.py --block modern --variants standard,merged [--peers] [--json]

Takes the flags of `mlx-attn bench`, and adds to its table the columns

    x floor    time / time of only the model's matrix products: same shapes, whole BLAS
    x best     time / time of the faster way to compute them: whole, or by shards of the batch

Also prints a table of the share of each part (run separately on inputs of the right shape), and
with --peers the speed of other programs on a model that computes the same function. No program that
computes the same products can be faster than the products. The floor excludes the products of an
optimizer such as Muon. Decoding has neither column: a token is one graph, which takes less time
than its products one by one.
"""

import importlib
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Any

# Before MLX, because it loads the BLAS.
from mlx_attn.machine import blas

# isort: split
import click
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from peers import PEERS, beside

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.catalog import MAPS, VARIANTS
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Maps
from mlx_attn.bench import show, speed
from mlx_attn.bench.speed import MedianIQR, Rounds, Setup, Timed
from mlx_attn.cli import bench as command_line
from mlx_attn.cli.options import SectionedCommand
from mlx_attn.errors import ConfigError
from mlx_attn.machine.facts import machine_facts
from mlx_attn.machine.operations import cross_entropy
from mlx_attn.machine.streams import cores, keep_buffers, parallel_map, split_among_cores
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.config import TrainConfig
from mlx_attn.ui.terminal import count, number_table, stdout_console

# The matrix products of a model, counted from its configuration.


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products of [rows, inner] with [inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int


def _attention_products(
    config: AttentionConfig, layer: nn.Module, B: int, T: int
) -> Iterator[Product]:
    """Return the products of one attention layer: its maps, the scores and the weighted sum."""
    maps = Maps(config)
    for name, weight in named_arrays(layer.trainable_parameters()).items():
        if name.endswith("weight"):
            columns, inner = weight.shape
            yield Product(1, B * T, inner, columns)
    key_heads, key_width = maps.score.shape(config)
    yield Product(B * key_heads, config.n_heads // key_heads * T, key_width, T)
    value_heads, value_width = maps.value.shape(config)
    yield Product(B * value_heads, config.n_heads // value_heads * T, T, value_width)


_FORMS = [variant for variant in VARIANTS.values() if variant.group == "forms"]
_COUNTED = {name: {getattr(form, name) for form in _FORMS} for name in MAPS}


def products_of(config: GPTConfig, B: int) -> Counter[Product]:
    """Count the products of one forward pass over a batch.

    Raises:
        ConfigError: A choice of the maps is not one of the forms whose products are counted.
    """
    for name, words in _COUNTED.items():
        if getattr(config, name) not in words:
            raise ConfigError(
                f"the floor of {name}={getattr(config, name)} is not counted: time it with "
                "mlx-attn bench"
            )
    T, C = config.context_length, config.emb_dim
    layer = Counter(_attention_products(config.attention(), GPT(config).trf_blocks[0].att, B, T))
    layer[Product(1, B * T, C, config.hidden_dim)] += 1
    layer[Product(1, B * T, config.hidden_dim, C)] += 1
    products = Counter({product: n * config.n_layers for product, n in layer.items()})
    products[Product(1, B * T, C, config.vocab_size)] += 1
    return products


def floors(kind: str, config: GPTConfig, training: TrainConfig) -> dict[str, Timed]:
    """Return two ways to compute only the products.

    `whole`, the floor, computes each at its own shape with all threads of the BLAS. `shards`
    splits the batch among the cores, as a training step does, if there are several cores.
    """
    B = training.batch_size
    n = min(cores(), B)
    ways = {"whole": _floor(products_of(config, B), kind == "train", 1)}
    if n > 1:
        ways["shards"] = _floor(products_of(config, ceil(B / n)), kind == "train", n)
    return ways


def _floor(products: Counter[Product], backward: bool, shards: int) -> Timed:
    operands = {product: [_operands(product) for _ in range(shards)] for product in products}
    mx.eval(list(operands.values()))
    every = [operands[product] for product in products.elements()]
    compute = _times_backward if backward else _product

    def run() -> None:
        if shards == 1:
            blas.use_threads(blas.preload().threads)
        begun: list[list[mx.array]] = []
        for parts in every:
            # Evaluated one by one, so that no result stays in memory longer than needed.
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
    """Return the left factor, the transposed right factor, and the gradient of their product."""
    batch = () if product.batch == 1 else (product.batch,)
    rows, inner, columns = product.rows, product.inner, product.columns
    shapes = ((rows, inner), (columns, inner), (rows, columns))
    return [mx.random.normal((*batch, *shape)) for shape in shapes]


# The share of each part, run separately.

REST = "everything else"
PARTS_TIME = 0.4
"""Fraction of the time that is spent on the parts."""
Inputs = tuple[mx.array, ...]
"""x, and the other inputs of a part."""
Function = Callable[[Inputs], mx.array]
Layer = tuple[nn.Module, Function]
"""A module that has weights, and the function that it computes."""


def shares(
    kind: str, config: GPTConfig, training: TrainConfig, whole: Timed, seconds: float
) -> dict[str, float]:
    """Return each part's share of the total time; with "everything else" they add up to 1."""
    parts = _parts(kind, config, training)
    timings = speed.interleaved({REST: whole, **parts}, seconds)
    total = timings.pop(REST)
    found = {part: MedianIQR.of(times / total).median for part, times in timings.items()}
    return {**found, REST: 1 - sum(found.values())}


def _parts(kind: str, config: GPTConfig, training: TrainConfig) -> dict[str, Timed]:
    """Return the parts of a training step, or of a forward pass."""
    if kind == "forward":
        return _model_parts(speed.eval_model(config), training.batch_size, _run_alone)
    step = speed.train_step(config, training)
    gradients = {name: mx.ones_like(a) * 1e-3 for name, a in named_arrays(step.model).items()}
    mx.eval(gradients)
    tree = tree_unflatten(list(gradients.items()))

    def optimizer() -> None:
        mx.eval(step.update(tree), step.state)

    parts = _model_parts(step.model, training.batch_size, _run_with_gradients)
    return {**parts, "optimizer": optimizer}


def _model_parts(
    model: GPT, B: int, run: Callable[[Sequence[Layer], Sequence[Inputs]], Timed]
) -> dict[str, Timed]:
    config, head, blocks = model.config, _head(model), model.trf_blocks

    def loss(inputs: Inputs) -> mx.array:
        x, targets = inputs
        return cross_entropy(head(x).astype(mx.float32), targets).mean()

    owner = model.tok_emb if config.tied_head else model.out_head
    T = config.context_length
    targets = mx.random.randint(0, config.vocab_size, (B, T))
    divided = [split_among_cores(array) for array in (_normal(B, T, config.emb_dim), targets)]
    mx.eval(divided)
    inputs: list[Inputs] = list(zip(*divided, strict=True))
    return {
        "attention": run([(b.att, lambda i, b=b: b.att(i[0])) for b in blocks], inputs),
        "MLP": run([(b.ff, lambda i, b=b: b.ff(i[0])) for b in blocks], inputs),
        "head and loss": run([(owner, loss)], inputs),
    }


def _run_alone(layers: Sequence[Layer], inputs: Sequence[Inputs]) -> Timed:
    def run() -> None:
        for _, function in layers:
            mx.eval(parallel_map(function, inputs))

    return run


def _run_with_gradients(layers: Sequence[Layer], inputs: Sequence[Inputs]) -> Timed:
    """Run functions of x, and compute the gradients of x and of each module's weights."""
    passes = [(module, named_arrays(module.trainable_parameters()), f) for module, f in layers]
    cotangents = [mx.ones_like(layers[0][1](part)) for part in inputs]
    mx.eval(cotangents)
    # It takes one argument, because `parallel_map` maps over one.
    parts = [{"inputs": i, "cotangent": c} for i, c in zip(inputs, cotangents, strict=True)]

    def gradients(
        module: nn.Module, weights: Mapping[str, mx.array], function: Function
    ) -> Callable[[Mapping[str, Any]], Any]:
        def vjp(part: Mapping[str, Any]) -> Any:
            x, *others = part["inputs"]

            def of(x: mx.array, *arrays: mx.array) -> list[mx.array]:
                module.update(tree_unflatten(list(zip(weights, arrays, strict=True))))
                return [function((x, *others))]

            return mx.vjp(of, [x, *weights.values()], [part["cotangent"]])

        return vjp

    def run() -> None:
        for module, weights, function in passes:
            mx.eval(parallel_map(gradients(module, weights, function), parts))
            module.update(tree_unflatten(list(weights.items())))

    return run


def _head(model: GPT) -> Callable[[mx.array], mx.array]:
    return model.tok_emb.as_linear if model.config.tied_head else model.out_head


def _normal(*shape: int) -> mx.array:
    x = mx.random.normal(shape)
    mx.eval(x)
    return x


# Measuring and printing. Rows are dictionaries, as in the JSON file.


def measure(
    setups: Mapping[str, Setup], works: Sequence[str], seconds: float
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of `bench` for each kind of work, with floors and shares."""
    speed.check_memory(setups)
    keep_buffers()
    for kind in works:
        prepared = {name: speed.prepare(kind, *setup) for name, setup in setups.items()}
        timed = {(name, "work"): work.run for name, (work, _) in prepared.items()}
        divided = kind != "decode"
        for name, setup in setups.items() if divided else ():
            timed |= {(name, way): run for way, run in floors(kind, *setup).items()}
        budget = seconds / len(works)
        timings = speed.interleaved(timed, budget * (1 - PARTS_TIME))
        each = budget * PARTS_TIME / len(setups)
        first = timings[next(iter(setups)), "work"]
        rows = []
        for name, (work, peak) in prepared.items():
            own = {way: timing for (of, way), timing in timings.items() if of == name}
            whole = own.pop("work")
            row = asdict(speed.measurement(kind, name, work, peak, whole, first))
            if divided:
                parts = shares(kind, *setups[name], work.run, each)
                row |= _over_floors(whole, own) | {"shares": parts}
            rows.append(row)
        yield rows


def _over_floors(whole: Rounds, ways: Mapping[str, Rounds]) -> dict[str, Any]:
    best = min(ways.values(), key=lambda times: MedianIQR.of(times).median)
    return {
        "over_floor": asdict(MedianIQR.of(whole / ways["whole"])),
        "over_best": asdict(MedianIQR.of(whole / best)),
    }


Lines = list[tuple[str, dict[str, str]]]
"""The lines of a table: a name, and the cells by heading."""


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, Lines]:
    """Return the tables of one kind of work by title: speeds, and shares of the time."""
    title = show.TITLES[rows[0]["work"]]
    first = _measurement(rows[0])
    speeds: Lines = []
    for row in rows:
        ways = [key for key in ("floor", "best") if f"over_{key}" in row]
        floors = {f"x {key}": f"{row[f'over_{key}']['median']:.2f}" for key in ways}
        speeds.append((row["name"], show.speed_cells(_measurement(row), first) | floors))
    found: Lines = [
        (row["name"], {part: f"{share:.0%}" for part, share in row["shares"].items()})
        for row in rows
        if "shares" in row
    ]
    return {title: speeds} | ({f"{title}: share of the time": found} if found else {})


def _measurement(row: Mapping[str, Any]) -> speed.Measurement:
    known = {key.name: row[key.name] for key in fields(speed.Measurement) if key.name in row}
    spreads = {key: MedianIQR(**v) for key, v in known.items() if isinstance(v, dict)}
    return speed.Measurement(**{**known, **spreads})


def peers_table(rows: Sequence[Mapping[str, Any]]) -> Lines:
    """Return a table of our speed and each peer's, on a model that computes the same function."""
    return [
        (
            f"{row['peer']}: {row['work']}",
            {
                "ours, tokens/s": count(row["ours"]["median"]),
                "theirs": count(row["theirs"]["median"]),
                "ours / theirs": f"{row['faster']['median']:.2f}",
                "+-": show.half_iqr(MedianIQR(**row["faster"])),
            },
        )
        for row in rows
    ]


def _print(title: str, lines: Lines) -> None:
    table = number_table(["", *lines[0][1]], title)
    for name, cells in lines:
        table.add_row(name, *cells.values())
    stdout_console().print(table, "", sep="\n")


def main(
    preset: str,
    variants: str,
    part: Sequence[str],
    seconds: float,
    peers: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure speed, floors, parts and peers."""
    given = {key: value for key, value in given.items() if value is not None}
    works = part or tuple(speed.WORKLOADS)
    setups = _counted(speed.variant_setups(preset, given, variants, command_line.note))
    measured: list[dict[str, Any]] = []
    for rows in measure(setups, works, seconds):
        measured += rows
        for title, lines in () if as_json else tables(rows).items():
            _print(title, lines)
    compared = []
    for peer in [peer for peer in PEERS if peers and peer.work in works]:
        if importlib.util.find_spec(peer.package):
            compared.append(beside(peer, next(iter(setups.values())), seconds / 3))
        else:
            click.echo(f"{peer.name} is left out: {peer.package} is not installed", err=True)
    if as_json:
        facts = {"machine": machine_facts(), "preset": preset, "settings": given}
        click.echo(json.dumps(facts | {"measurements": measured, "peers": compared}))
    elif compared:
        _print("compared with other programs, at the same sizes", peers_table(compared))


def _counted(setups: Mapping[str, Setup]) -> dict[str, Setup]:
    """Return the setups whose products are counted, and tell why the others are left out."""
    counted: dict[str, Setup] = {}
    for name, (config, training) in setups.items():
        try:
            products_of(config, training.batch_size)
            counted[name] = config, training
        except ConfigError as error:
            command_line.note(f"{name} is left out: {error}")
    if not counted:
        raise click.UsageError("no variant is left")
    return counted


NOT_HERE = ("device", "help_all")
"""Options of `mlx-attn bench` that are not taken over: every command has `--help-all` already."""

command = SectionedCommand(
    "floors.py",
    callback=main,
    params=[
        click.Option(["--peers"], is_flag=True, help="also other programs that are installed"),
        *(option for option in command_line.command.params if option.name not in NOT_HERE),
    ],
    help=main.__doc__,
)

if __name__ == "__main__":
    command()
