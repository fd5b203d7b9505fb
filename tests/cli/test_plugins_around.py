"""`--plugin FILE`: a user's own positions, norm, activation, optimizer, data and metric."""

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.arrays import load_arrays, named_arrays
from mlx_attn.model.gpt import GPT
from mlx_attn.plugins import unload_plugins
from mlx_attn.run_directory import open_run
from tests.cli.conftest import done, refused

EXAMPLE = Path(__file__).parents[2] / "examples" / "around_attention.py"
PLUGIN = f"--plugin={EXAMPLE}"
KINDS = {
    "position=half": ["--position=half"],
    "position=sinusoids": ["--position=sinusoids"],
    "norm=dyt": ["--norm=dyt"],
    "activation=swish": ["--activation=swish"],
    "residual=parallel": ["--residual=parallel"],
    "residual=rezero": ["--residual=rezero"],
    "optimizer=lion": ["--optimizer=lion", "--lr=1e-3"],
    "data=reverse": ["--data=reverse", "--context-length=21"],
    "data=counting": ["--data=counting"],
    "metric=top5": ["--metric=top5"],
}
OF_THE_MODEL = ("position", "norm", "activation", "residual")
IN_THE_MODEL = [kind for kind in KINDS if kind.split("=")[0] in OF_THE_MODEL]


pytestmark = pytest.mark.usefixtures("no_plugins")


def last_weights(run: str) -> dict[str, Any]:
    return load_arrays(Path(run, "checkpoint", "last.safetensors"))[0]


def metrics(run: str) -> list[dict]:
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def file(text: str, name: str = "mine.py") -> str:
    head = "import mlx.core as mx\nimport mlx.nn as nn\nimport numpy as np\n"
    head += "import mlx.optimizers as optim\nfrom mlx_attn.attention.layer import choice\n"
    Path(name).write_text(head + "from mlx_attn.text.tasks import Documents\n" + text)
    return name


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_is_recorded_asked_for_and_resumed_to_the_same_bits(
    train, run_command, kind
):
    flags = [PLUGIN, *KINDS[kind], "--schedule=constant", "--drop-rate=0.1"]
    for name, steps in (("whole", "6"), ("own", "3")):
        done(train(*flags, f"--steps={steps}", f"--out=runs/{name}"))
    (plugin,) = json.loads(Path("runs/own/config.json").read_text())["plugins"]
    assert (plugin["names"], plugin["path"]) == ([kind], str(EXAMPLE))
    unload_plugins()
    line = refused(run_command("sample", "runs/own", "--max-tokens=3"), 2)
    assert line.startswith("Error: this run uses around_attention.py ")
    assert run_command("sample", "runs/own", "--max-tokens=3", PLUGIN).exit_code == 0
    assert run_command("probe", "runs/own", PLUGIN).exit_code == 0
    done(train("--resume", "runs/own", PLUGIN, "--steps=6"))
    whole, own = last_weights("runs/whole"), last_weights("runs/own")
    assert whole.keys() == own.keys()
    assert [name for name in whole if not mx.array_equal(whole[name], own[name])] == []


def test_a_position_written_as_rope_trains_as_rope(train):
    text = """
@choice("position", "turned", "RoPE")
def turned(a, y, positions):
    half = y.shape[-1] // 2
    turns = positions[:, None] * 10000.0 ** (-mx.arange(half) / half)
    first, second, cos, sin = y[..., :half], y[..., half:], mx.cos(turns), mx.sin(turns)
    return mx.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
"""
    for more in ([], ["--window=5", "--score=merged"]):
        for position in ("rope", "turned"):
            flags = ["--position", position, f"--out=runs/{position}", "--overwrite", *more]
            assert train("--plugin", file(text), *flags).exit_code == 0
        ours, theirs = (metrics(f"runs/{name}")[-1]["val_loss"] for name in ("turned", "rope"))
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_layers_of_a_pattern_have_positions_of_their_own(train):
    text = """
from mlx_attn.attention.config import Variant, register
register(Variant(name="halved", position="half", formula="", summary=""))
register(Variant(name="waves", position="sinusoids", formula="", summary=""))
"""
    flags = [PLUGIN, "--plugin", file(text), "--n-layers=2", "--position=none"]
    done(train(*flags, "--pattern=halved,standard", "--out=runs/own"))
    used = json.loads(Path("runs/own/config.json").read_text())["plugins"]
    names = {name for plugin in used for name in plugin["names"]}
    assert names == {"position=half", "variant=halved"}
    line = refused(train(*flags, "--pattern=waves,standard"), 2)
    assert "waves needs sinusoids positions, which all layers read" in line


def test_a_task_takes_other_sizes_behind_its_name(train, run_command):
    text = """
@choice("data", "pairs", "", length=2, sizes={"symbols": 3})
def pairs(random, count, symbols):
    places = np.repeat(random.integers(0, symbols, (count, 1)), 2, axis=1)
    right = np.array([[False, True]] * count)
    return Documents([str(i) for i in range(symbols)], places, right, right, np.zeros((count, 2)))
"""
    shown = run_command("data", "show", "pairs:symbols=7", "--json", "--plugin", file(text))
    assert json.loads(shown.stdout)["vocabulary"] == 8
    assert train("--plugin=mine.py", "--data=pairs:symbols=7", "--out=runs/own").exit_code == 0
    (plugin,) = json.loads(Path("runs/own/config.json").read_text())["plugins"]
    assert plugin["names"] == ["data=pairs"]


def test_an_optimizer_of_mlx_takes_the_steps_of_the_built_in_one(train):
    text = """
@choice("optimizer", "theirs", "AdamW of MLX")
def theirs(c):
    betas = [c.beta1, c.beta2]
    return optim.AdamW(c.lr, betas, weight_decay=c.weight_decay, bias_correction=True)
"""
    for name in ("theirs", "adamw"):
        flags = [f"--optimizer={name}", f"--out=runs/{name}", "--weight-decay=0.1", "--decay=all"]
        assert train("--plugin", file(text), *flags).exit_code == 0
    ours, theirs = (metrics(f"runs/{name}")[-1]["val_loss"] for name in ("theirs", "adamw"))
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_an_optimizer_may_leave_parameters_to_adamw(train):
    text = """
class Still(optim.Optimizer):
    def __init__(self, rate):
        super().__init__()
        self._maybe_schedule("learning_rate", rate)

    def init_single(self, parameter, state):
        pass

    def apply_single(self, gradient, parameter, state):
        return parameter


@choice("optimizer", "still", "W", claims=lambda name, array: name.startswith("trf_blocks"))
def still(c):
    return Still(c.lr)
"""
    assert train("--plugin", file(text), "--optimizer=still", "--out=runs/own").exit_code == 0
    trained = open_run(Path("runs/own")).load_model()
    start, end = named_arrays(GPT(trained.config, seed=0)), named_arrays(trained)
    moved = {name.split(".")[0] for name in start if not mx.array_equal(start[name], end[name])}
    assert moved == {"tok_emb", "final_norm", "out_head"}


@pytest.mark.parametrize("data", ["story.txt", "reverse"])
def test_a_metric_is_the_mean_over_the_scored_tokens(train, data):
    """The mean of the loss of each token is the validation loss."""
    text = """
@choice("metric", "nats", "-log p")
def nats(logits, targets):
    return nn.losses.cross_entropy(logits, targets)
"""
    flags = [f"--data={data}", "--context-length=21", "--metric=nats+top5", "--out=runs/own"]
    result = train("--plugin", file(text), PLUGIN, *flags)
    assert result.exit_code == 0, result.output
    assert re.search(r"nats \d\.\d+ +top5 0\.\d+", result.stderr + result.stdout)
    validations = [line for line in metrics("runs/own") if line["event"] in ("eval", "end")]
    for line in validations:
        assert line["metrics"]["nats"] == pytest.approx(line["val_loss"], rel=1e-5)
        assert 0 <= line["metrics"]["top5"] <= 1


NORM, ACTIVATION = '@choice("norm", "own", "")\n', '@choice("activation", "own", "")\n'
BLOCK = '@choice("residual", "own", "")\ndef f(x, att, ff, norm1, norm2):\n'
POSITION, OPTIMIZER = '@choice("position", "own", ""{})\n', '@choice("optimizer", "own", "")\n'
TASK, TEXT = '@choice("data", "own", "", length=4)\n', '@choice("data", "own", "")\n'
METRIC = '@choice("metric", "own", "")\n'
DRAWN = "places = random.integers(0, 2, (count, 4))\n    right = places >= 0\n    {}\n    "
DRAWN += "return Documents('ab', places, right, right, nats)"
BROKEN = {
    "logits leak": (
        '@choice("logits", "own", "s")\ndef f(a, s, *rest): return s + s[..., ::-1]',
        r"logits=own lets a token read later ones: with tokens \d+ to 12",
    ),
    "norm leaks": (
        NORM + "def f(x): return x - x.mean(axis=1, keepdims=True)",
        "norm=own lets a token read later ones",
    ),
    "norm mixes a batch": (
        NORM + "def f(x): return x - x.mean(axis=0, keepdims=True)",
        "norm=own mixes the sequences of a batch",
    ),
    "norm's shape": (
        NORM + "def f(x): return x.mean(axis=-1, keepdims=True)",
        r"norm=own must return the shape \(2, 3, 16\), and returned \(2, 3, 1\)",
    ),
    "norm's start": (
        NORM + "class N(nn.Module):\n    def __init__(self, c):\n        super().__init__()\n"
        "        self.weight = mx.random.normal((c.emb_dim,))\n"
        "    def __call__(self, x): return x * self.weight",
        "norm=own starts with other weights each time",
    ),
    "a block attends twice": (
        BLOCK + "    return x + att(norm1(x)) + att(norm2(x)) + ff(x)",
        r"residual=own must call attention once, with the shape \(2, 3, 16\), and called it",
    ),
    "activation is random": (
        ACTIVATION + "def f(h): return h * mx.random.uniform(shape=h.shape)",
        "activation=own computes something else each time",
    ),
    "position leaks": (
        POSITION.format("") + "def f(a, y, positions): return y + y.mean(axis=2, keepdims=True)",
        "position=own lets a token read later ones",
    ),
    "position counts again": (
        POSITION.format("") + "def f(a, y, p): return y * (1 + mx.arange(y.shape[2]))[:, None]",
        "position=own computes something else when it decodes with a cache",
    ),
    "place": (
        POSITION.format(', at="scores"') + "def f(a, y, p): return y",
        "at='scores' must be one of heads, input",
    ),
    "optimizer's schedule": (
        OPTIMIZER + "def f(c): return optim.SGD(optim.cosine_decay(c.lr, 10))",
        "optimizer=own has a schedule of its own",
    ),
    "optimizer remembers elsewhere": (
        "class S(optim.SGD):\n    seen = 0\n    def apply_single(self, g, w, state):\n"
        "        self.__dict__['seen'] = self.seen + 1\n"
        "        return w - self.learning_rate * g * self.seen\n"
        + OPTIMIZER
        + "def f(c): return S(c.lr)",
        "optimizer=own does not resume to the same numbers",
    ),
    "task draws elsewhere": (
        TASK
        + "def f(random, count):\n    "
        + DRAWN.format(
            "nats = np.zeros(places.shape); right[:, 0] = False; "
            "places = np.random.default_rng().integers(0, 2, (count, 4))"
        ),
        "data=own must draw its random numbers from its argument",
    ),
    "text's kind": (TEXT + "def f(): yield 3", r"data=own must yield texts \(str\), and yielded"),
    "metric's shape": (
        METRIC + "def f(logits, targets): return logits",
        r"metric=own must return a number for each target, the shape \(1, 4\) here, and returned",
    ),
    "metric of a batch": (
        METRIC + "def f(logits, targets): return mx.ones(targets.shape) * targets.size",
        "metric=own: the number of a target must depend only on its own logits",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_row_that_breaks_a_law_is_refused_before_training(workshop, train, case):
    text, complaint = BROKEN[case]
    setting = re.search(r'@choice\("(\w+)"', text)
    assert setting
    line = refused(train("--plugin", file(text), f"--{setting[1]}=own", "--out=runs/own"), 2)
    assert re.search(complaint, line)
    assert not Path("runs/own").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--metric=top5"], "(none is loaded): add --plugin FILE"),
        ([PLUGIN, "--metric=top_5"], "metric='top_5' is none of your own (top5)"),
    ],
)
def test_an_unknown_name_is_answered_with_all_there_are(train, flags, message):
    assert message in refused(train(*flags), 2)


def test_the_lists_and_the_help_show_them(workshop, run_command):
    rows = json.loads(run_command("variants", "--choices", "--json", PLUGIN).stdout)["choices"]
    shown = {f"{row['map']}={row['name']}" for row in rows}
    assert {*KINDS} <= shown
    assert {"norm=rmsnorm", "position=rope", "optimizer=muon", "activation=gelu"} <= shown
    rows = json.loads(run_command("data", "list", "--json", PLUGIN).stdout)
    assert {"reverse", "counting"} <= {row["name"] for row in rows}


@pytest.mark.parametrize("kind", IN_THE_MODEL)
def test_a_model_is_exported_nowhere_and_opened(train, run_command, kind):
    assert train(PLUGIN, *KINDS[kind], "--out=runs/own").exit_code == 0
    exported = run_command("export", "runs/own", "--to=mlx-lm", "--out=there", PLUGIN)
    line = f"Error: {kind} is of a plugin, and no other program has it\n"
    assert refused(exported, 2) == line
    done(run_command("open", "runs/own", "--no-browser", "--html=page.html", PLUGIN))


@pytest.mark.parametrize("kind", ["norm=dyt", "residual=rezero", "norm=own"])
def test_conversion_keeps_a_norm_or_a_block_that_has_no_gain_to_fold(train, run_command, kind):
    text = NORM + "def f(x): return x * mx.rsqrt((x * x).mean(-1, keepdims=True) + 1)"
    plugins = [PLUGIN, "--plugin", file(text)]
    assert train(*plugins, f"--{kind}", "--out=runs/own").exit_code == 0
    assert run_command("convert", "runs/own", "--to=merged", *plugins).exit_code == 0
    folded = run_command("convert", "runs/own", "--to=merged", "--fold-norm", *plugins)
    assert f"{kind} is your own" in folded.stderr


def test_conversion_refuses_a_position(train, run_command):
    assert train(PLUGIN, *KINDS["position=half"], "--out=runs/own").exit_code == 0
    line = refused(run_command("convert", "runs/own", "--to=merged", PLUGIN), 2)
    assert "turns queries and keys" in line


def test_an_error_in_a_task_names_its_line(workshop, train):
    plugin = file(TASK + "def f(random, count): return count.x")
    line = refused(train("--plugin", plugin, "--data=own"), 1)
    assert f"plugin {Path(plugin).resolve()}, line 8: AttributeError" in line


def test_what_only_trains_does_not_hinder_an_export(train, run_command):
    flags = [*KINDS["optimizer=lion"], "--metric=top5", "--data=counting", "--out=runs/own"]
    assert train(PLUGIN, *flags).exit_code == 0
    result = run_command("export", "runs/own", "--to=mlx-lm", "--out=there", PLUGIN)
    assert result.exit_code == 0, result.output


def test_a_position_may_have_trained_weights(train):
    text = """
@choice("position", "scaled", "q_i (1 + g i)", weights={"g": lambda c: mx.zeros(c.head_dim)})
def scaled(a, y, positions):
    return y * (1 + a.g * positions[:, None])
"""
    assert train("--plugin", file(text), "--position=scaled", "--out=runs/own").exit_code == 0
    assert mx.any(open_run(Path("runs/own")).load_model().trf_blocks[0].att.g != 0)
