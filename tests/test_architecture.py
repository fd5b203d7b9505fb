"""The rooms of the package, and which way they look: imports point one way."""

import ast
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import mlx_attn
from mlx_attn.attention.catalog import CHOICES, MAPS
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.model.config import GPTConfig
from mlx_attn.training.config import TrainConfig

PACKAGE = Path(mlx_attn.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts): f for f in FILES}

GROUND = ("about", "errors", "files", "keys", "records", "arrays", "ui")
HEART = (
    *("machine", "attention", "plugins", "model", "text", "run_directory"),
    *("sampling", "runs", "training"),
)
LABORATORY = (
    *("laws", "cost", "activations", "convert", "probe", "verify", "explore", "comparison"),
    *("bench", "interop", "repl", "api", "cli"),
)
ROOMS = (*GROUND, *HEART, *LABORATORY)
"""Bottom to top: a room imports from rooms before it, never from one after it.

So who reads a model and its training meets no conversion, no probe and no law of a choice.
"""

SHOWS = {"show.py", "report.py", "page.py", "screen.py", "figures.py"}
SHARED_NAMES = {"config.py", "show.py", "report.py", "page.py", "__init__.py", "__main__.py"}
LONGEST_FILE = 450
BUDGETS = {"mlx_attn": 24_541, "studies": 2_150, "tests": 13_493}
SHORTEST_FILE_FOR_ONE = 60
"""A file with one importer and fewer lines belongs in its importer."""


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_shown(file: Path) -> bool:
    """Tell if a file is about the looks of things."""
    return file.name in SHOWS or room(file) in ("ui", "api", "cli")


DOORS = {PACKAGE / "__init__.py", PACKAGE / "__main__.py"}
LIBRARY = [file for file in FILES if not is_shown(file) and file not in DOORS]


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imported(file: Path) -> set[str]:
    """The modules, or names in modules, that a file imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def called(file: Path) -> set[str]:
    """The names of the functions that a file calls directly."""
    calls = (node for node in ast.walk(tree(file)) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def modules_used(file: Path) -> set[str]:
    names = [name for name in imported(file) if name.startswith("mlx_attn.")]
    modules = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    return modules - {"mlx_attn"}


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def roots(file: Path) -> set[str]:
    """The packages that a file imports from."""
    return {module.split(".")[0] for module in imported(file)}


def where(breaks: Callable[[Path], object], files: Iterable[Path] = FILES) -> list[str]:
    """The files that break a rule: those for which the function finds something."""
    return [str(file.relative_to(PACKAGE)) for file in files if breaks(file)]


def test_every_room_has_its_place():
    assert {room(file) for file in FILES} == {*ROOMS, "__init__", "__main__"}


def test_imports_point_one_way():
    """A name that `mlx_attn/__init__.py` offers comes from above all rooms."""

    def looks_up(file: Path) -> set[str]:
        names = [name for name in imported(file) if name.startswith("mlx_attn.")]
        return {name.split(".")[1] for name in names} - {*ROOMS[: ROOMS.index(room(file)) + 1]}

    assert where(looks_up, [file for file in FILES if file not in DOORS]) == []


def test_the_library_prints_nothing_and_reads_no_terminal():
    drawing = {"click", "rich", "prompt_toolkit", "jinja2", "matplotlib"}
    # What a user's file prints goes to stderr.
    assert where(lambda file: {"print", "input"} & called(file), LIBRARY) == ["plugins.py"]
    assert where(lambda file: drawing & roots(file), LIBRARY) == []


def test_what_things_are_does_not_depend_on_how_they_look():
    shown = {module for module, file in MODULES.items() if is_shown(file)}
    assert where(lambda file: modules_used(file) & shown, LIBRARY) == []


def test_only_the_command_line_knows_click():
    assert where(lambda file: room(file) != "cli" and "click" in roots(file)) == []


CHOICE_NAMES = {name: {*CHOICES[name]} for name in MAPS}
NAMES = [*CHOICE_NAMES.values()]
UNMISTAKABLE = {name for names in NAMES for name in names if "_" in name}
"""Names of choices that are no words of anything else."""


def names_a_choice(node: ast.AST) -> bool:
    """Tell if a piece of code decides something by the name of a choice, or lists such names."""
    match node:
        case ast.Compare():
            sides = [node.left, *node.comparators]
            keys = {_last_name(side) for side in sides} | {_key(side) for side in sides}
            return any(_words(node) & CHOICE_NAMES[key] for key in keys & CHOICE_NAMES.keys())
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            named = [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant)]
            rows = [(k, v) for k, v in named if k in CHOICE_NAMES]
            listed = {key for key, _ in named}
            tables = [len(listed & names) > 1 >= len(listed - names) for names in NAMES]
            return any(_words(v) & CHOICE_NAMES[k] for k, v in rows) or any(tables)
        case ast.keyword(arg=str(key), value=ast.Constant(value=word)) if key in CHOICE_NAMES:
            return word in CHOICE_NAMES[key]
        case ast.Tuple() | ast.List() | ast.Set():
            words = [part.value for part in node.elts if isinstance(part, ast.Constant)]
            whole = len(words) == len(node.elts) > 1
            return whole and any({*words} <= names for names in NAMES)
        case ast.Constant(value=str(word)):
            return word in UNMISTAKABLE
    return False


def _words(node: ast.AST) -> set[str]:
    constants = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return {part.value for part in constants if isinstance(part.value, str)}


def _key(node: ast.AST) -> str:
    """The key of a subscript: "score" of `settings["score"]`."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=key)):
            return str(key)
    return ""


def test_no_choice_of_a_map_is_named_outside_of_attention():
    """Other rooms ask for a fact of `Choice`, which a user's choice has too.

    But a conversion leads to a form by its name.
    """
    forms = {"convert/conversions.py", "convert/writers.py"}

    def names_one(file: Path) -> bool:
        return any(names_a_choice(node) for node in ast.walk(tree(file)))

    outside = [file for file in FILES if room(file) != "attention"]
    assert {*where(names_one, outside)} == forms


def used(file: Path) -> set[str]:
    """The attributes that a file uses: "json.loads" of a name, and ".loads" of whatever it is."""
    nodes = [node for node in ast.walk(tree(file)) if isinstance(node, ast.Attribute)]
    return {name for n in nodes for name in (f".{n.attr}", f"{_last_name(n.value)}.{n.attr}")}


def _last_name(value: ast.expr) -> str:
    return getattr(value, "id", "") or getattr(value, "attr", "")


def users(*wanted: str) -> list[str]:
    """The files that use any of these attributes, functions or packages."""
    return where(lambda f: {*wanted} & (used(f) | called(f) | imported(f) | roots(f)))


WHERE_IT_RUNS = {"on_gpu", "on_linux_cpu", "code_path", "default_device", "is_available"}
"""Functions that tell which device computes, or which path is taken."""


def asks_where_it_runs(file: Path) -> set[str]:
    """Return the questions of a file: those functions, the system, a device's name compared."""
    attributes = {name.removeprefix(".") for name in used(file)}
    names = {name.rpartition(".")[2] for name in imported(file)} | attributes | called(file)
    compared = [ast.unparse(n) for n in ast.walk(tree(file)) if isinstance(n, ast.Compare)]
    found = (names & WHERE_IT_RUNS) | (attributes & {"sys.platform", "platform.system"})
    return found | {text for text in compared if "device_name(" in text}


def test_nothing_outside_of_the_machine_asks_where_it_runs():
    assert where(asks_where_it_runs, [file for file in FILES if room(file) != "machine"]) == []


ONE_DOOR: dict[tuple[str, ...], list[str]] = {
    # Records are checked when read.
    ("json.loads", "json.load", "msgspec.convert", "json.decode"): ["records.py"],
    (".mkdir", "os.makedirs"): ["files.py"],
    (".flock", ".rmtree", ".rmdir", "os.rename", "shutil.move"): ["files.py"],
    # Paths of a user.
    ("click.Path",): ["cli/options.py"],
    (".expanduser",): ["files.py"],
    # Output of commands. Elsewhere consoles print, which also show control characters as pictures.
    ("click.echo", "click.secho", "click.style"): ["cli/output.py"],
    ("stdout.write", "stderr.write", "file.write"): ["ui/terminal.py"],
    ("print",): ["plugins.py", "training/show.py"],
    ("tomllib",): ["records.py"],
    # No file of a user is executed but a plugin that is named.
    ("eval", "exec", "compile", "__import__"): ["plugins.py"],
    ("exec_module", ".exec_module"): [],
    ("pickle", "marshal", "shelve", "dill", "joblib"): [],
    # Metal lacks the kernels of its decompositions: a call would fail on a Mac and nowhere else.
    ("mx.linalg", "core.linalg", "mlx.core.linalg"): [],
    # The studies are built on the package.
    ("studies",): [],
}
"""Attributes, functions and packages, and the only files that use them."""


@pytest.mark.parametrize(("names", "files"), ONE_DOOR.items(), ids=[names[0] for names in ONE_DOOR])
def test_what_must_be_done_with_care_is_done_in_one_place(names, files):
    assert users(*names) == files


def test_settings_stay_few():
    configs = (AttentionConfig, GPTConfig, TrainConfig)
    assert sum(len(fields(config)) for config in configs) <= 75


def test_a_file_can_be_read_in_one_sitting():
    studies = PACKAGE.with_name("studies").glob("*.py")
    assert [file.name for file in (*FILES, *studies) if lines(file) > LONGEST_FILE] == []


def test_package_and_tests_keep_their_line_budgets():
    """A budget falls with every deletion; the commit that raises one gives the reason."""
    root = PACKAGE.parent
    totals = {name: sum(map(lines, (root / name).rglob("*.py"))) for name in BUDGETS}
    assert {name: total for name, total in totals.items() if total > BUDGETS[name]} == {}


def test_a_short_file_with_one_importer_is_part_of_it():
    importers = Counter(module for file in FILES for module in modules_used(file))
    short = {
        m for m, f in MODULES.items() if importers[m] == 1 and lines(f) < SHORTEST_FILE_FOR_ONE
    }
    commands = {m for m in short if m.startswith("mlx_attn.cli")}
    assert {m for m in short - commands if MODULES[m].name != "__init__.py"} == set()


def test_no_two_files_share_a_name_by_accident():
    # A command's file has the command's name, whatever else is called so.
    files = [file for file in FILES if room(file) != "cli"]
    names = Counter(file.name for file in files if file.name not in SHARED_NAMES)
    assert not [name for name, count in names.items() if count > 1]


def test_no_module_imports_itself_by_way_of_others():
    """Imports inside functions and for type checking count too."""
    left = {name: modules_used(file) & {*MODULES} - {name} for name, file in MODULES.items()}
    while free := {name for name, used in left.items() if not used & {*left}}:
        left = {name: used for name, used in left.items() if name not in free}
    # The rest lies on a circle, or imports a module of one.
    assert not left, {name: sorted(used & {*left}) for name, used in left.items()}
