"""The rooms of the package, and which way they look: imports point one way."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlx_attn

PACKAGE = Path(mlx_attn.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts): f for f in FILES}

GROUND = ("errors", "blas", "files", "keys", "arrays", "cpu", "ui")
ROOMS = (
    *GROUND,
    *("attention", "plugins", "model", "text", "runs", "sampling", "training", "convert", "probe"),
    *("compare", "bench", "repl", "cli"),
)
"""Bottom to top: a room imports from rooms before it, never from one after it."""

SHOWS = {"show.py", "report.py", "page.py", "screen.py", "figures.py"}
SHARED_NAMES = {"config.py", *SHOWS, "__init__.py", "__main__.py"}
LONGEST_FILE = 450
SHORTEST_FILE_FOR_ONE = 60
"""A file with one importer and fewer lines belongs in its importer."""


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_shown(file: Path) -> bool:
    """Whether a file is about how things look, not what they are."""
    return file.name in SHOWS or room(file) in ("ui", "cli")


LIBRARY = [file for file in FILES if not is_shown(file) and file.name != "__main__.py"]


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path) -> Iterator[str]:
    """The modules, or names in modules, that a file imports anywhere in it."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def called(file: Path) -> set[str]:
    """The names of the functions that a file calls directly."""
    calls = (node for node in ast.walk(tree(file)) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def modules_used(file: Path) -> set[str]:
    names = [name for name in imported(file) if name.startswith("mlx_attn.")]
    modules = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    return modules - {"mlx_attn"}


def importers() -> Counter[str]:
    return Counter(module for file in FILES for module in modules_used(file))


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def name(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def test_every_room_has_its_place():
    assert {room(file) for file in FILES} == {*ROOMS, "__init__", "__main__"}


@pytest.mark.parametrize("file", [f for f in FILES if room(f) in ROOMS], ids=name)
def test_imports_point_one_way(file):
    here = room(file)
    below = {*ROOMS[: ROOMS.index(here) + 1]}
    seen = {module.split(".")[1] for module in modules_used(file) if "." in module}
    assert seen <= below


@pytest.mark.parametrize("file", LIBRARY, ids=name)
def test_the_library_prints_nothing_and_reads_no_terminal(file):
    assert not {"print", "input"} & called(file)
    roots = {module.split(".")[0] for module in imported(file)}
    assert not {"click", "rich", "prompt_toolkit", "jinja2", "matplotlib"} & roots


@pytest.mark.parametrize("file", LIBRARY, ids=name)
def test_what_things_are_does_not_depend_on_how_they_look(file):
    assert not [module for module in modules_used(file) if is_shown(MODULES[module])]


@pytest.mark.parametrize("file", FILES, ids=name)
def test_only_the_command_line_knows_click(file):
    roots = {module.split(".")[0] for module in imported(file)}
    assert room(file) == "cli" or "click" not in roots


@pytest.mark.parametrize("file", FILES, ids=name)
def test_no_file_of_a_user_is_executed_but_a_plugin_that_is_named(file):
    assert room(file) == "plugins" or "exec_module" not in file.read_text(encoding="utf-8")
    assert not {"eval", "exec", "compile", "__import__"} & called(file)
    roots = {module.split(".")[0] for module in imported(file)}
    assert not {"pickle", "marshal", "shelve", "dill", "joblib"} & roots


@pytest.mark.parametrize("file", FILES, ids=name)
def test_a_file_can_be_read_in_one_sitting(file):
    assert lines(file) <= LONGEST_FILE


def test_a_short_file_with_one_importer_is_part_of_it():
    alone = {module for module, count in importers().items() if count == 1}
    short = {m for m in alone if lines(MODULES[m]) < SHORTEST_FILE_FOR_ONE}
    assert not {
        m for m in short if MODULES[m].name != "__init__.py" and not m.startswith("mlx_attn.cli")
    }


def test_no_two_files_share_a_name_by_accident():
    names = Counter(file.name for file in FILES if file.name not in SHARED_NAMES)
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("file", FILES, ids=name)
def test_a_module_says_what_it_is_for(file):
    assert ast.get_docstring(tree(file))
