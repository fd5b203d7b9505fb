"""Time training and decoding next to PyTorch, mlx-lm and transformers on one GPU, in one table.

    pip install torch transformers mlx-lm
    python benchmarks/gpu.py --presets tiny,macbook,gpt2

Each case is a process of its own, because MLX reads once whether products round to TF32. Those of a
preset compile at the same time, or one after another if it is large; then each is timed by itself,
ours and the others in turns. A training step is the book's model with AdamW, as in `with_torch.py`;
decoding is a GPT-2 with random weights that transformers made, so that all must write the same
tokens. A case that fails, or is not ready in time, is one line. Answers are kept in a file, and the
same command adds the missing ones.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from mlx_attn.machine import blas

# isort: split
import click
import mlx.core as mx
import numpy as np
import peers
import with_torch
from rich.console import Console

from mlx_attn.bench import show, speed
from mlx_attn.bench.speed import MedianIQR, Timed
from mlx_attn.interop.checkpoints import gpt2_config, read_checkpoint
from mlx_attn.machine.facts import chip_name
from mlx_attn.machine.streams import keep_buffers
from mlx_attn.model.config import GPTConfig, config_from, find_preset
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, TokenStep, decode
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.training.config import TrainConfig
from mlx_attn.ui.terminal import count, number_table

MOST_TOKENS = 8192
"""Tokens of a batch at most, so that all cases fit into the GPU's memory at once."""
LARGE = 10_000  # tokens in the vocabulary of a model whose cases need all of the GPU's memory
PRODUCTS = {"float32": "0", "TF32": "1", "bfloat16": "1"}
"""The kinds of a training step's products, with MLX's switch for TF32."""


@dataclass(frozen=True, slots=True)
class Case:
    """What one process measures."""

    work: str  # train or decode
    preset: str
    products: str

    def __str__(self) -> str:
        return f"{self.work} {self.preset} {self.products}"


def groups(presets: Sequence[str]) -> list[list[Case]]:
    """Return the cases that compile together; a large model's compile one by one."""
    found: list[list[Case]] = []
    for preset in presets:
        train = [Case("train", preset, products) for products in PRODUCTS]
        of_preset = [*train, Case("decode", preset, "float32")]
        is_large = find_preset(preset).vocab_size > LARGE
        found += [[case] for case in of_preset] if is_large else [of_preset]
    return found


# One case, in its own process.

Works = tuple[dict[str, Timed], int]
"""What to time by name, ours first, and the tokens of each."""


def training_works(config: GPTConfig, training: TrainConfig, case: Case) -> Works:
    """Return our training step and PyTorch's, as it is and compiled."""
    torch: Any = importlib.import_module("torch")
    torch.set_float32_matmul_precision("highest" if case.products == "float32" else "high")
    config = config_from(config.as_dict() | peers.ENCODER)
    B = max(1, min(training.batch_size, MOST_TOKENS // config.context_length))
    dtype = "bfloat16" if case.products == "bfloat16" else "float32"
    fixed = {"optimizer": "adamw", "accumulate": 1, "compile": "on"}  # compiled like a long run
    training = replace(training, dtype=dtype, batch_size=B, **fixed)
    ours = speed.WORKLOADS["train"](config, training)
    step = partial(with_torch.torch_step, config, training)
    makers = {"PyTorch": step, "torch.compile": partial(step, compiled=True)}
    return {"ours": ours.run} | working(makers), ours.tokens


def decoding_works(config: GPTConfig, training: TrainConfig, case: Case) -> Works:
    """Return ways to write a text greedily with the same weights, and check that it is the same."""
    hub: Any = importlib.import_module("transformers")
    room = max(config.context_length, speed.PROMPT_TOKENS + speed.NEW_TOKENS)
    config = config_from(config.as_dict() | peers.GPT2 | {"context_length": room})
    model = hub.GPT2LMHeadModel(hub.GPT2Config(**gpt2_config(config), use_cache=True))
    new = speed.NEW_TOKENS
    with tempfile.TemporaryDirectory() as folder:
        # Without the head: mlx-lm knows the names only without its prefix.
        model.transformer.save_pretrained(folder)
        ways = {
            "ours": partial(our_text, folder),
            "mlx-lm": partial(mlx_lm_text, folder),
            "transformers": partial(transformers_text, model),
        }
        made = working({name: partial(way, new) for name, way in ways.items()})
    texts = {name: write() for name, write in made.items()}
    for name, text in texts.items():
        same = sum(a == b for a, b in zip(text, texts["ours"], strict=True))
        if same < new:
            click.echo(f"{case}: {same} of {new} tokens of {name} are ours", err=True)
    return {**made}, new


def working(makers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the programs that can be made and run; one that fails is a line."""
    made = {}
    for name, make in makers.items():
        try:
            made[name] = make()
            made[name]()
        except Exception as error:
            click.echo(f"{name} is left out: {one_line(error)}", err=True)
    return made


def one_line(error: BaseException) -> str:
    """Return the type of an error and the beginning of its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


PROMPT = list(range(1, speed.PROMPT_TOKENS + 1))


def our_text(folder: str, new: int) -> Callable[[], list[int]]:
    """Return a function that writes a text with our model of a folder."""
    model = read_checkpoint(Path(folder)).model
    model.eval()
    mx.eval(model.parameters())
    step = TokenStep(model)

    def write() -> list[int]:
        blas.use_threads(blas.preload().threads)
        greedy = Sampler(SamplerConfig(temp=0.0))
        rows = [*islice(decode(DecodingState(step), PROMPT, greedy), new)]
        mx.synchronize()
        return [row[0] for row in rows]

    return write


def mlx_lm_text(folder: str, new: int) -> Callable[[], list[int]]:
    """Return a function that writes a text with mlx-lm's model of a folder."""
    utils: Any = importlib.import_module("mlx_lm.utils")
    generation: Any = importlib.import_module("mlx_lm.generate")
    model, _ = utils.load_model(Path(folder))
    prompt = mx.array(PROMPT)

    def write() -> list[int]:
        blas.use_threads(blas.preload().threads)
        steps = generation.generate_step(prompt, model, max_tokens=new)
        return [int(token) for token, _ in steps]

    return write


def transformers_text(model: Any, new: int) -> Callable[[], list[int]]:
    """Return a function that writes a text with transformers' model."""
    torch: Any = importlib.import_module("torch")
    device = with_torch.device_of(torch)
    model = model.to(device).eval()
    prompt = torch.tensor([PROMPT], device=device)
    how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}

    def write() -> list[int]:
        with torch.no_grad():
            return model.generate(prompt, **how)[0, len(PROMPT) :].tolist()

    return write


def measure(case: Case, seconds: float) -> None:
    """Prepare, say "ready", wait for a line, time, and print the seconds and tokens as JSON."""
    keep_buffers()
    setups = speed.variant_setups(case.preset, {}, "standard")
    make = training_works if case.work == "train" else decoding_works
    works, tokens = make(*setups["standard"], case)
    works["ours"]()
    mx.clear_cache()
    torch: Any = importlib.import_module("torch")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    click.echo("ready")
    sys.stdin.readline()
    times = speed.interleaved(works, seconds)
    found = {name: t.tolist() for name, t in times.items()}
    click.echo(json.dumps({"tokens": tokens, "seconds": found}))


# All cases.


def start(case: Case, seconds: float) -> subprocess.Popen[str]:
    """Start a case's process, which compiles and then waits for a line."""
    environment = os.environ | {"MLX_ENABLE_TF32": PRODUCTS[case.products], "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--case", str(case), "--seconds", str(seconds)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def answers(
    wanted: Sequence[Case], seconds: float, patience: float
) -> Iterator[tuple[Case, dict[str, Any] | str]]:
    """Yield the measurement of each case, or the reason for its absence."""
    processes = {case: start(case, seconds) for case in wanted}
    try:
        with ThreadPoolExecutor(len(wanted)) as readers:
            reading = {
                case: readers.submit(made.stdout.readline)
                for case, made in processes.items()
                if made.stdout
            }
            ready, late = wait(reading.values(), patience)
            for case in wanted:
                if reading[case] in late:
                    processes[case].kill()
            for case in wanted:
                if reading[case] in ready:
                    yield case, _answer(processes[case], reading[case].result(), seconds)
                else:
                    yield case, f"not ready after {patience:.0f} s"
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _answer(process: subprocess.Popen[str], said: str, seconds: float) -> dict[str, Any] | str:
    if said.strip() != "ready":
        return said.strip() or "ended before it was ready"
    try:
        told, _ = process.communicate("go\n", timeout=4 * seconds + 90)
    except subprocess.TimeoutExpired as error:
        return one_line(error)
    try:
        return json.loads(told)
    except json.JSONDecodeError:
        return told.strip() or "ended before it was timed"


def row_of(answer: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a case: tokens per second, and how many times as fast ours is."""
    seconds = {name: np.array(times) for name, times in answer["seconds"].items()}
    spreads = {name: MedianIQR.of(answer["tokens"] / t) for name, t in seconds.items()}
    cells = {name: count(spread.median) for name, spread in spreads.items()}
    for name, times in seconds.items():
        if name != "ours":
            faster = MedianIQR.of(times / seconds["ours"])
            cells[f"ours / {name}"] = f"{faster.median:.2f} +- {show.half_iqr(faster)}"
    return cells


def print_tables(kept: Mapping[str, Any]) -> None:
    """Print a table of each kind of work."""
    click.echo(f"{chip_name()}, MLX {version('mlx')}")
    for work in ("train", "decode"):
        rows = {name: row_of(kept[name]) for name in kept if name.startswith(work)}
        headings = list(dict.fromkeys(heading for cells in rows.values() for heading in cells))
        table = number_table(["", *headings], f"{show.TITLES[work]}, tokens/s")
        for name, cells in rows.items():
            table.add_row(name, *(cells.get(heading, "-") for heading in headings))
        if rows:
            Console(width=140).print(table, "", sep="\n")


@click.command(help=__doc__)
@click.option("--presets", default="tiny,macbook,gpt2", metavar="A,B", show_default=True)
@click.option("--seconds", default=8.0, metavar="X", show_default=True, help="timing of a case")
@click.option("--patience", default=150.0, metavar="X", show_default=True, help="for compiling")
@click.option("--only", default="", metavar="TEXT", help="only cases with this in their name")
@click.option("--out", default="gpu.json", metavar="FILE", show_default=True, help="the answers")
@click.option("--case", "named", default="", hidden=True)
def command(presets: str, seconds: float, patience: float, only: str, out: str, named: str) -> None:
    """Measure all cases, or the one that is named."""
    if named:
        warnings.simplefilter("ignore")
        try:
            measure(Case(*named.split()), seconds)
        except Exception as error:
            click.echo(one_line(error))
        return
    file = Path(out)
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for group in groups(presets.split(",")):
        wanted = [case for case in group if only in str(case) and str(case) not in kept]
        for case, answer in answers(wanted, seconds, patience) if wanted else ():
            if isinstance(answer, str):
                click.echo(f"{case}: {answer}", err=True)
                continue
            click.echo(f"{case}: {row_of(answer)}", err=True)
            kept[str(case)] = answer
            file.write_text(json.dumps(kept))
    print_tables(kept)


if __name__ == "__main__":
    command()
