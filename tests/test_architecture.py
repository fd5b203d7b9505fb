"""The rooms of the package, and which way they look: imports point one way."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlx_attn

PACKAGE = Path(mlx_attn.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LIBRARY = [file for file in FILES if file.relative_to(PACKAGE).parts[0] not in ("show", "cli")]

GROUND = {"errors", "blas", "blas_wheel", "files", "trees", "exponentials", "keys", "lazy"}
GROUND |= {"streams"}
SEES: dict[str, set[str]] = {
    "attention": GROUND,
    "model": {"attention", *GROUND},
    "text": GROUND,
    "runs": {"model", "text", "attention", *GROUND},
    "sampling": {"runs", "model", "text", "attention", *GROUND},
    "training": {"runs", "model", "text", "attention", *GROUND},
    "lab": {"training", "sampling", "runs", "model", "text", "attention", *GROUND},
    "interop": {"training", "sampling", "runs", "model", "text", "attention", *GROUND},
}
SEES["show"] = {*SEES, *GROUND}
SEES["cli"] = {*SEES, *GROUND}
LONGEST_FILE = 300


def room_of(module: str) -> str:
    """mlx_attn.text.corpus lives in the room text."""
    return module.split(".")[1] if "." in module else ""


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(file: Path) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def called(file: Path) -> set[str]:
    """The names of the functions that a file calls directly."""
    calls = (node for node in ast.walk(tree(file)) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def name(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


@pytest.mark.parametrize("file", FILES, ids=name)
def test_imports_point_one_way(file):
    here = room(file)
    allowed = SEES.get(here, GROUND) | {here, ""}
    if here in ("__init__", "__main__"):
        allowed = {*GROUND, "cli"}
    seen = {room_of(m) for m in imported(file) if m.startswith("mlx_attn.")}
    assert seen - {"__version__"} <= allowed


def test_every_room_has_its_place():
    assert {room(file) for file in FILES} <= {*SEES, *GROUND, "__init__", "__main__"}


@pytest.mark.parametrize("file", LIBRARY, ids=name)
def test_the_library_prints_nothing_and_reads_no_terminal(file):
    assert not {"print", "input"} & called(file)
    roots = {module.split(".")[0] for module in imported(file)}
    assert not {"click", "rich", "prompt_toolkit"} & roots


@pytest.mark.parametrize("file", FILES, ids=name)
def test_no_file_of_a_user_is_ever_executed(file):
    assert not {"eval", "exec", "compile", "__import__"} & called(file)
    roots = {module.split(".")[0] for module in imported(file)}
    assert not {"pickle", "marshal", "shelve", "dill", "joblib"} & roots


@pytest.mark.parametrize("file", FILES, ids=name)
def test_a_file_can_be_read_in_one_sitting(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("file", FILES, ids=name)
def test_a_module_says_what_it_is_for(file):
    assert ast.get_docstring(tree(file))
