"""Imported before any test, and so before MLX: the package loads a fast BLAS first.

Models here are so small that a second thread costs more than it computes: the suite, and every
process that it starts, has one thread. Products are exact: MLX reads its switch with the first one,
and would round factors to TF32 on newer GPUs, which no tolerance of a test allows for.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import jaxtyping
import pytest
from hypothesis import settings
from markupsafe import Markup

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MLX_ENABLE_TF32", "0")

import mlx_attn  # isort: skip
import mlx.core as mx

from mlx_attn.attention.catalog import CHOICES, VARIANTS
from mlx_attn.comparison import runner
from mlx_attn.machine import device
from mlx_attn.plugins import unload_plugins
from mlx_attn.text.corpus import Corpus, prepare
from tests.chromium import Browser, find_chromium

__all__ = ["mlx_attn"]

# How long a case takes is the machine's other work, and no law.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

CHECKED = {"attention", "model"}
"""Rooms in whose tests the shapes and types of the rooms' own functions are checked at every call.

It doubles their time, so the tests of other rooms and of other code paths do without.
"""

DIFFERS_BY_PATH = (
    "attention/",
    "model/",
    "sampling/",
    "training/test_loop.py",
    "training/test_optimizers.py",
    "training/test_resume.py",
    "training/test_settings.py",
    "training/test_step.py",
    "test_device.py",
    "test_embedding.py",
    "test_every_variant.py",
    "test_exponentials.py",
)
"""Tests of what asks which device computes. CI runs them on each code path: `pytest -m path`."""

THE_PAGE = "explore/test_page_computes_what_mlx_computes.py"
"""The tests in a browser that are not slow: that the page computes what the model does."""

EARLY = {"faults", "comparison", "cli", "probe", "verify", "training"}
"""Folders with tests of many seconds."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes of `-n auto`: one more than cores, because many tests wait for others."""
    return min(os.cpu_count() or 1, 8) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that other suites run.

    Few files with long tests come first, so that no process is left with it at the end.
    """
    items.sort(key=lambda item: room_of(item) not in EARLY)
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()) and place_of(item) != THE_PAGE:
            item.add_marker("slow")
        if place_of(item).startswith(DIFFERS_BY_PATH) and not item.get_closest_marker("slow"):
            item.add_marker("path")


def place_of(item: pytest.Item) -> str:
    """The path of a test's file in the folder of tests."""
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def room_of(item: pytest.Item) -> str:
    """The folder of tests that a test lies in, or its file."""
    return place_of(item).partition("/")[0]


def pytest_runtest_setup(item: pytest.Item) -> None:
    checked = room_of(item) in CHECKED and device.SWITCH not in os.environ
    jaxtyping.config.update("jaxtyping_disable", not checked)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    """Two thousand characters to train on and two hundred to validate."""
    sentences = "the cat sat on the mat. ", "a dog ran to the door. ", "one two three four five. "
    path = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    path.write_text("".join(sentences[i * i % 3] + sentences[i % 3] for i in range(40)))
    return prepare(str(path), "char", directory=path.parent)


@pytest.fixture
def gpu_path() -> Iterator[None]:
    """This test takes the path of a GPU."""
    with device.forced_path("gpu"):
        yield


@pytest.fixture
def nvidia(gpu_path, monkeypatch) -> None:
    """This test takes the path of an NVIDIA GPU."""
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)


@pytest.fixture
def on_processor() -> Iterator[None]:
    """This test computes on the processor, on a machine with a GPU too."""
    with device.on_device("cpu"):
        yield


@pytest.fixture
def chosen(monkeypatch) -> list[str]:
    """The devices that are chosen; MLX keeps its own, and seems to have a GPU."""
    monkeypatch.setattr(device, "devices", lambda: ["cpu", "gpu"])
    monkeypatch.setenv(device.DEVICE, "")  # so that it is restored, even to none
    monkeypatch.delenv(device.DEVICE)
    names: list[str] = []
    monkeypatch.setattr(
        mx, "set_default_device", lambda made: names.append(getattr(made, "type", made).name)
    )
    return names


@pytest.fixture
def no_lookahead(on_processor) -> Iterator[None]:
    """MLX waits for its queue before it allocates, so that a peak of memory repeats.

    Otherwise it allocates for as many operations ahead as the machine's other work lets it, and a
    GPU frees what it has read whenever it is done.
    """
    limit = mx.set_memory_limit(1)
    yield
    mx.set_memory_limit(limit)


@pytest.fixture
def no_plugins() -> Iterator[None]:
    """The test begins and ends with the built-in tables."""
    tables = {"variant": VARIANTS, **CHOICES}
    unload_plugins()
    before = {key: [*rows] for key, rows in tables.items()}
    yield
    unload_plugins()
    assert {key: [*rows] for key, rows in tables.items()} == before


@pytest.fixture
def own_rows() -> Iterator[None]:
    """Variants and choices that the test registers itself are forgotten afterwards."""
    tables = [VARIANTS, *CHOICES.values()]
    before = [[*table] for table in tables]
    yield
    for table, names in zip(tables, before, strict=True):
        for name in {*table} - {*names}:
            del table.rows[name]


class ThisProcess:
    """A pool that does its work at once."""

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **options))
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """Trials of a comparison are trained without processes of their own."""
    monkeypatch.setattr(runner, "worker_pool", lambda size: nullcontext(ThisProcess()))


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """The browser that all tests share."""
    program = find_chromium()
    if not program:
        pytest.skip("needs Chromium: apt install chromium")
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def no_figures(monkeypatch):
    """Pages without figures, which take their time."""
    drawn = "mlx_attn.comparison.report.figure_for_page"
    monkeypatch.setattr(drawn, lambda draw: Markup("<svg></svg>"))
