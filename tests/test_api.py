"""The laboratory from Python, as a script or a notebook uses it."""

import doctest
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import mlx.core as mx
import numpy as np
import pytest
from rich.console import Console

import mlx_attn
from mlx_attn.api.loaded import LoadedModel
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run, open_run
from mlx_attn.text.characters import CharacterTokenizer
from mlx_attn.training.events import Ended, Started, Stepped
from tests.runs import STORY, TINY

RECIPE = {**TINY, "preset": "nano", "eval_every": 3, "log_every": 2}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Those of a tiny training on a short story."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "story.txt").write_text(STORY)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(folder / "data"))
        monkeypatch.setattr("mlx_attn.text.sources.TALES_BYTES", (40_000, 10_000))
        yield {**RECIPE, "data": str(folder / "story.txt")}


@pytest.fixture(scope="module")
def kept(settings, tmp_path_factory):
    """A finished training in a directory."""
    return mlx_attn.train(tmp_path_factory.mktemp("runs") / "one", **settings).run()


@pytest.fixture(scope="module")
def model(kept):
    return mlx_attn.load(kept.trainer.run.path)


def test_importing_the_package_imports_neither_mlx_nor_numpy_nor_a_room():
    code = "import mlx_attn, sys; "
    code += "print('train' in dir(mlx_attn), end=' '); "
    code += "print(*sorted(m for m in sys.modules if m.startswith(('mlx', 'numpy'))))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True mlx_attn mlx_attn.about\n"


def test_a_training_yields_its_events_in_any_thread_and_goes_on_where_it_was_left(settings):
    events, names = iter(training := mlx_attn.train(**settings)), []
    while names[-1:] != ["step"]:
        with ThreadPoolExecutor(1) as another:
            names.append(another.submit(next, events).result().event)
    assert names == ["start", "step"]
    assert training.run().trainer.progress.step == RECIPE["steps"]
    assert (training.trainer.run, len(training.model.generate("the", 3))) == (None, 3)


def test_a_training_starts_from_another_run(kept, model):
    again = mlx_attn.train(init_from=kept.out, steps=1, lr=1e-9, min_lr=0.0, muon_lr=1e-9)
    assert mx.array_equal(again.trainer.model.tok_emb.weight, model.model.tok_emb.weight)


def test_a_training_that_was_left_is_resumed_from_its_checkpoint(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = mlx_attn.train("left", **settings)
    for event in left:
        monkeypatch.chdir("/")  # where the run's directory does not go
        if isinstance(event, Stepped) and event.step == 4:
            assert left.model.run.path == tmp_path / "left"
            break
    stale, metrics = mlx_attn.resume(tmp_path / "left"), tmp_path / "left" / "metrics.jsonl"
    size = metrics.stat().st_size
    first, *_, last = mlx_attn.resume(tmp_path / "left")
    metrics.write_bytes(metrics.read_bytes()[:size])  # as long as before
    assert isinstance(first, Started)
    assert isinstance(last, Ended)
    assert (first.step, last.steps) == (3, 6)
    for use in (left.run, stale.run, lambda: left.model):
        with pytest.raises(RunError, match="left has been trained by another since: resume"):
            use()


def test_a_resumed_training_has_the_best_weights_of_the_run_even_if_it_validates_nothing(kept):
    resumed = mlx_attn.resume(kept.out).run()
    assert (resumed.losses, resumed.model.run.path) == ({}, kept.out)


def test_a_taken_directory_is_answered_with_what_a_script_can_do(settings, kept):
    with pytest.raises(RuntimeError, match=r"exists: mlx_attn\.resume\('.+'\) continues it, ov"):
        mlx_attn.train(kept.out, **settings)


def test_numbers_of_numpy_are_numbers(settings):
    numbers = {"steps": np.int64(3), "seed": np.uint8(1), "lr": np.float32(0.01)}
    training = mlx_attn.train(**{**settings, **numbers, "qkv_bias": np.bool_(True)})
    assert training.trainer.config.steps == 3
    assert json.dumps(asdict(training.trainer.settings.training))
    drawn = {"temp": np.float32(0.7), "seed": np.int64(1), "top_k": np.int32(3)}
    assert len(training.run().model.generate("the", max_tokens=4, **drawn)) == 4


def test_a_text_is_read_after_the_document_s_start(model):
    """Of a model as if its text had documents, each after a line break."""
    run = Run(model.run.path, {**model.run.settings, "corpus": "tales"})
    tokenizer = CharacterTokenizer.train("\n" + STORY)
    config = replace(model.model.config, vocab_size=tokenizer.vocab_size, start="book")
    gpt = GPT(config)
    gpt.eval()
    storyteller = LoadedModel(run, gpt, tokenizer)
    typed = storyteller.logits("\nthe cat").astype(np.float64)
    np.testing.assert_allclose(storyteller.logits("the cat"), typed[1:], atol=1e-6)
    assert storyteller.loss("the cat") == pytest.approx(storyteller.loss("\nthe cat"), abs=1e-6)
    assert repr(storyteller.attention("the")) == r"AttentionMaps(tokens=['\n', 't', 'h', 'e'])"
    generated = [storyteller.generate(text, 5, temp=0.0) for text in ("the cat", "\nthe cat")]
    assert generated[0] == generated[1]


def test_matrices_are_products_of_the_heads_weights(model):
    layer = model.model.trf_blocks[0].att
    q, k = (np.array(w.weight).reshape(2, 8, 16) for w in (layer.W_query, layer.W_key))
    np.testing.assert_allclose(model.matrices(0).S, np.einsum("hdc,hde->hce", q, k), atol=1e-5)
    assert model.matrices(0).VO.shape == (2, 16, 16)


def test_what_holds_arrays_is_equal_to_itself_only(kept, model):
    for read in (lambda: mlx_attn.load(kept.out), lambda: model.attention("the")):
        assert len({one := read(), other := read()}) == 2
        assert one != other


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda model: model.logits("a" * 17), "has 17 tokens, and this model reads 1 to 16"),
        (lambda model: model.loss("a"), "at least two tokens"),
        (lambda model: model.matrices(3), "layer=3: this model's layers are 0 to 0"),
        (lambda model: model.matrices("0"), "layer='0' must be a whole number"),
        (lambda model: model.generate(temp=-1.0), "temp"),
        (lambda model: model.generate(Path("a.txt")), "has the type .*Path: give a str"),
        (lambda model: model.stream("the", count=0), "^count=0 must be at least 1"),
        (lambda _: mlx_attn.train(5), "'5' names no file"),  # pyright: ignore
        (lambda _: mlx_attn.train(init_from=""), "^'' names no file"),
        (lambda _: mlx_attn.compare("standard", "merged", out=""), "'' names no file: give"),
        (lambda _: mlx_attn.compare(["a"]), "arm=.* must be a text"),  # pyright: ignore
        (lambda model: mlx_attn.compare("standard", "merged", jobs=-1), "jobs=-1 must be at least"),
        (lambda _: mlx_attn.compare("standard", plugins=""), "'' names no file"),
        # Before it is known that there is no such text.
        (lambda _: mlx_attn.train(data="gone", variant="linear", window=4), "hides: leave window"),
        (lambda _: mlx_attn.compare("standard", "linear", data="gone", window=4), "hides: leave"),
    ],
)
def test_what_cannot_be_asked_is_refused(model, wrong, message):
    with pytest.raises(ValueError, match=message) as refused:  # as Python calls such failures
        wrong(model)
    assert refused.type is ConfigError


@pytest.fixture(scope="module")
def compared(settings, tmp_path_factory):
    events = []
    result = mlx_attn.compare(
        *("standard", "no-query"),
        out=tmp_path_factory.mktemp("comparisons") / "both",
        seeds=2,
        tune=False,
        jobs=1,
        on_event=events.append,
        **{key: value for key, value in settings.items() if "every" not in key},
    )
    return result, events


def test_a_comparison_answers_is_kept_and_prints_its_question_and_a_table(compared):
    result, events = compared
    assert [*result.answers] == ["no-query"]
    assert result.comparison.reference == "scores-off"
    assert (result.directory / "comparison.json").is_file()
    assert events
    assert repr(result).startswith("How does no-query compare with standard?")
    console = Console(width=100)
    with console.capture() as captured:
        console.print(result)
    assert "no-query" in captured.get()


def test_results_show_themselves_in_a_notebook_once(kept, model, compared, monkeypatch):
    monkeypatch.setattr("builtins.get_ipython", type("ZMQInteractiveShell", (), {}), raising=False)
    monkeypatch.setattr("rich.jupyter.display", lambda *_: pytest.fail("rich shows it too"))
    for shown in (kept, model.attention("the cat"), compared[0]):
        page = ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")
        assert page.find(".//{http://www.w3.org/2000/svg}svg") is not None


PACKAGE = Path(mlx_attn.__file__).parent
WITH_EXAMPLES = [file for file in PACKAGE.rglob("*.py") if ">>> " in file.read_text()]


@pytest.mark.parametrize("file", WITH_EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_in_docstrings_run(file, no_plugins, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(PACKAGE.with_name("examples"))
    room, run = file.relative_to(PACKAGE.parent).with_suffix(""), open_run(kept.out)
    given = {"mx": mx, "mlx_attn": mlx_attn, "run": run, "model": run.load_model(), "text": STORY}
    given |= {"tokens": mx.array([[1, 2]]), "loaded": mlx_attn.load(kept.out)}
    found = doctest.DocTestFinder().find(import_module(".".join(room.parts)), extraglobs=given)
    assert sum(doctest.DebugRunner().run(example).attempted for example in found)


NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"


@pytest.mark.parametrize(
    "name",
    ["identities", "looking_into_gpt2", pytest.param("your_own_ablation", marks=pytest.mark.slow)],
)
def test_the_notebooks_run_as_scripts(name, settings, tmp_path):
    read = mlx_attn.train(
        tmp_path / "read", **{**settings, "tokenizer": "byte", "context_length": 64, "steps": 1}
    )
    places = {"MLX_ATTN_DATA_DIR": str(tmp_path / "data"), "RUN": str(read.run().out)}
    environment = {**os.environ, **places}
    command = [sys.executable, NOTEBOOKS / f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "was imported before mlx_attn" not in done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len({*steps}) == len(steps)  # no worker process trains again
