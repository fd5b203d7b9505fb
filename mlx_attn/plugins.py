"""A user's own choices and variants of attention: Python files that are named with `--plugin FILE`.

A file is imported only when it is named, and never from stored bytecode. A run records the path,
digest and names of the files that its model uses; reading the run never imports them. A script may
import such a file as a module, too: it is recorded alike.
"""

import hashlib
import os
import re
import sys
import traceback
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib.util import source_from_cache
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

from mlx_attn.attention.catalog import CHOICES, VARIANTS, Choice, choice_of, find_variant
from mlx_attn.errors import ConfigError, RunError, one_line
from mlx_attn.files import user_path
from mlx_attn.records import read_bytes

_MODULE = "mlx_attn_plugin_"
_SHORT = 12  # hexadecimal digits of a digest that people see

Plugins = str | Path | Iterable[str | Path]


@dataclass(frozen=True, slots=True)
class Plugin:
    """An imported file."""

    path: Path
    sha256: str
    # Its registrations: "logits=NAME" for a choice, "variant=NAME" for a variant.
    names: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """Path, from its folder, and digest of the files below it that it read or imported."""


_loaded: dict[Path, Plugin] = {}

_opened: defaultdict[Path, set[Path]] = defaultdict(set)
"""What each file has opened."""
_running: list[Path] = []
"""The file that is run now, after those that load it."""


def load_plugins(paths: Plugins) -> list[Plugin]:
    """Import files that register choices and variants; the same file again changes nothing.

    A file that has changed, or that read one that has, runs again with what it imports beside it.

    Args:
        paths: One file, or several.

    Raises:
        RunError: A file cannot be read.
        ConfigError: A file raises, registers nothing, or a name that is taken or cannot be typed.

    Example:
        >>> plugins = mlx_attn.load_plugins("examples/talking_heads.py")
        >>> result = mlx_attn.train(variant="talk", preset="nano", steps=20).run()
    """
    several = [paths] if isinstance(paths, str | Path) else paths
    # Twice, because config.json gets the whole path, and JSON is UTF-8.
    return [_load(user_path(user_path(path).resolve())) for path in several]


def load_named_plugins(paths: Plugins, settings: Mapping[str, Any] | None = None) -> None:
    """Load these files after those that MLX_ATTN_PLUGINS names.

    Raises:
        ConfigError: A file is among the settings.
    """
    if settings and "plugin" in settings:
        raise ConfigError(f"plugin is no setting: name files with plugins=[{settings['plugin']!r}]")
    load_plugins(path for path in os.environ.get("MLX_ATTN_PLUGINS", "").split(os.pathsep) if path)
    load_plugins(paths)


def _load(path: Path) -> Plugin:
    digest = hashlib.sha256(read_bytes(path)).hexdigest()
    for plugin in _present():
        beside = ((path.parent / name, old) for name, old in plugin.files.items())
        # A file that loaded this one takes its choices back, too.
        is_whole = plugin.sha256 == digest and {*plugin.names} <= {*_registered()}
        if is_whole and all(_digest(file) == old for file, old in beside):
            return plugin
    if path in _loaded:
        _forget(path, _loaded.pop(path).names)
    before = _registered()
    try:
        _execute(path, _MODULE + digest)
        _check(path, _added_to(before))
    except BaseException:
        _forget(path, _added_to(before))
        raise
    files = {str(file.relative_to(path.parent)): _digest(file) for file in _opened_beside(path)}
    plugin = _loaded[path] = Plugin(path, digest, _added_to(before), files)
    return plugin


def _opened_beside(path: Path) -> list[Path]:
    """Return the files below its folder, but of installed packages, that a file has opened."""
    # A module that was imported before is read from its bytecode.
    sources = {
        Path(source_from_cache(file)) if file.parent.name == "__pycache__" else file
        for file in _opened[path]
    }
    installed = {Path(__file__).parent, Path(os.__file__).resolve().parent}
    below = (file for file in sources if path.parent in file.parents and file.is_file())
    own = (file for file in below if installed.isdisjoint(file.parents))
    return sorted(file for file in own if "site-packages" not in file.parts)


@contextmanager
def only(paths: Plugins) -> Iterator[None]:
    """Load these files instead of those that are loaded, until the block ends."""
    before, places = [*_loaded], [*sys.path]
    unload_plugins()
    try:
        load_plugins(paths)
        yield
    finally:
        unload_plugins()
        sys.path[:] = places  # to import what is beside each file
        load_plugins(before)


def _present() -> list[Plugin]:
    """Return the files whose choices are registered: loaded here, or imported as modules."""
    loaded = {name for plugin in _loaded.values() for name in plugin.names}
    imported: dict[Path, list[str]] = {}
    for map_name, table in CHOICES.items():
        for choice in filter(None, table.values()):
            name = f"{map_name}={choice.name}"
            if name not in loaded and choice.foreign_functions:
                imported.setdefault(_file_of(choice), []).append(name)
    modules = (Plugin(path, _digest(path), tuple(names)) for path, names in imported.items())
    return [*_loaded.values(), *modules]


def _file_of(choice: Choice) -> Path:
    """Return the file that a user's choice was defined in, or the name that Python has for none."""
    codes = (getattr(function, "__code__", None) for function in choice.foreign_functions)
    return Path(next((code.co_filename for code in codes if code), "<unknown>")).absolute()


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; "" without a file, as in a notebook."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except RunError:
        return ""


def unload_plugins() -> None:
    """Take back what all files registered."""
    while _loaded:
        path, plugin = _loaded.popitem()
        _forget(path, plugin.names)


def _print(*values: object, **options: Any) -> None:
    """Print what a user's file prints, at any time, on stderr: stdout is only for results."""
    print(*values, **{"file": sys.stderr, **options})  # noqa: T201


def _execute(path: Path, name: str) -> None:
    """Run the file as a module of a private name."""
    module = ModuleType(name)
    vars(module).update(__file__=str(path), print=_print)
    _watch()
    sys.modules[name] = module  # where dataclasses look for it
    source = path.read_bytes()
    _running.append(path)
    try:
        code = compile(source, path, "exec")
        with redirect_stdout(sys.stderr):  # what the modules print that it imports, too
            exec(code, vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(_line_about(error, path)) from error
    finally:
        _running.pop()


@cache
def _watch() -> None:
    """Note files that are opened while a user's file runs; an audit hook cannot be removed."""

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and _running and isinstance(arguments[0], str | Path):
            _opened[_running[-1]].add(Path(arguments[0]).resolve())

    sys.addaudithook(note)


def _line_about(error: BaseException, path: Path) -> str:
    """Return the file, the line and the error, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)
    reason = one_line(error)
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
        reason = error.msg
    kind = "" if isinstance(error, ConfigError) else type(error).__name__
    place = f"plugin {path}, line {line}" if line else f"plugin {path}"
    return ": ".join(filter(None, (place, kind, reason)))


def plugin_error(error: BaseException) -> str | None:
    """Return the line about an error that a plugin's code raised later; None for another error."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    path = next((path for path in _loaded if str(path) in files), None)
    return path and _line_about(error, path)


def _check(path: Path, names: tuple[str, ...]) -> None:
    if not names:
        raise ConfigError(
            f"plugin {path} registers nothing: call register(Variant(...)), or decorate a function "
            "with @choice(...)"
        )
    for name in names:
        kind, _, word = name.partition("=")
        row = VARIANTS[word] if kind == "variant" else None
        letters = "a-z0-9-" if row else "a-z0-9_-"
        for each in filter(None, (word or " ", row.alias if row else "")):
            if not re.fullmatch(f"[{letters}]+", each):
                raise ConfigError(
                    f"plugin {path}: the {kind} '{each}' cannot be typed: use only {letters}"
                )
        try:
            for map_name, chosen in (row.maps if row else {}).items():
                choice_of(map_name, chosen)
        except ConfigError as error:
            raise ConfigError(f"plugin {path}: variant '{word}': {error}") from error


_TABLES = {**CHOICES, "variant": VARIANTS}


def _registered() -> dict[str, object]:
    return {f"{kind}={name}": row for kind, table in _TABLES.items() for name, row in table.items()}


def _added_to(before: Mapping[str, object]) -> tuple[str, ...]:
    """Return what was registered since; a file may replace what a notebook's cell defined."""
    return tuple(name for name, row in _registered().items() if before.get(name) is not row)


def _forget(path: Path, names: Iterable[str]) -> None:
    """Take back what a file registered and imported: a load of it begins anew."""
    for name in names:
        kind, _, word = name.partition("=")
        _TABLES[kind].rows.pop(word, None)
    sources = {path, *_opened_beside(path)}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if name != "__main__" and file and Path(file).resolve() in sources:
            del sys.modules[name]
    _opened.pop(path, None)


def used_plugins(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return path, digest and used names of the files whose choices a model's settings name."""
    rows = [find_variant(name) for name in str(model.get("pattern") or "").split(",") if name]
    words = {f"variant={row.name}" for row in rows}
    for layer in (model, *(row.settings for row in rows)):
        for key in CHOICES:
            words |= {f"{key}={word}" for word in str(layer.get(key, "")).split("+")}
    used = [(plugin, words & {*plugin.names}) for plugin in _present()]
    return [
        {"path": str(p.path), "sha256": p.sha256, "names": sorted(names), "files": p.files}
        for p, names in used
        if names
    ]


def check_in_files(records: Iterable[Mapping[str, Any]]) -> None:
    """Refuse choices that were defined where no file holds them, as in a notebook.

    Raises:
        ConfigError: Neither a worker process nor a reader of the run could compute them.
    """
    for record in records:
        if not record["sha256"]:
            raise ConfigError(
                f"{' and '.join(record['names'])} is defined in {Path(record['path']).name}, which "
                "is no file, so no other process could compute it: begin the cell with "
                "%%writefile mine.py, and name that file with plugins='mine.py'"
            )


def check_plugins(settings: Mapping[str, Any]) -> None:
    """Refuse the settings of a run without the files that it was trained with.

    Another version of such a file, or of one that it reads, is a warning.
    """
    present = _present()
    by_name = {name: plugin for plugin in present for name in plugin.names}
    missing: dict[str, str] = {}  # the paths to name, by file and digest
    for old in settings.get("plugins", ()):
        path, same = user_path(old["path"]), [p for p in present if p.sha256 == old["sha256"]]
        if not same and not {*old["names"]} <= {*_registered()}:
            # The path only of the recorded file: a foreign run may name any.
            place = path if _digest(path) == old["sha256"] else f"PATH/{path.name}"
            missing[f"{path.name} (sha256 {old['sha256'][:_SHORT]})"] = str(place)
            continue
        owners = same or [by_name[name] for name in old["names"] if name in by_name]
        now = {path.name: owners[0].sha256, **owners[0].files} if owners else {path.name: ""}
        folder = owners[0].path.parent if owners else path.parent
        for name, then in {path.name: old["sha256"], **old.get("files", {})}.items():
            if (now[name] if name in now else _digest(folder / name)) != then:
                changed = f"has changed since this run was trained (sha256 {then[:_SHORT]} then)"
                # Of one place in this file, and so told once.
                warnings.warn(f"{name} {changed}: it may now compute another model", stacklevel=1)
    if missing:
        flags = " ".join(f"--plugin {quote(place)}" for place in missing.values())
        needs = f"this run uses {' and '.join(missing)}: add"
        raise ConfigError(f"{needs} {flags}", f"{needs} plugins={[*missing.values()]}")


def load_recorded(records: Iterable[Mapping[str, Any]]) -> None:
    """Load the files that a command was given, in one of its worker processes."""
    wanted = list(records)
    # Another version of a file may register the same names.
    if {plugin.sha256 for plugin in _loaded.values()} - {old["sha256"] for old in wanted}:
        unload_plugins()
    for old in wanted:
        path = Path(old["path"])
        # Before it is run: a file that nobody named is not.
        for name, digest in {path.name: old["sha256"], **old.get("files", {})}.items():
            if _digest(file := path.parent / name) not in ("", digest):
                raise RunError(f"plugin {file} has changed since the comparison began: put it back")
        load_plugins(path)
