"""`--plugin FILE`: a user's own attention, from training to talking; and the same in Python."""

import json
import shlex
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

import mlx_attn
from mlx_attn import plugins
from mlx_attn.attention.catalog import choice, find_variant
from mlx_attn.errors import ConfigError
from mlx_attn.plugins import unload_plugins
from mlx_attn.run_directory import open_run
from mlx_attn.training.show import what_next
from tests.cli.conftest import TINY_SETTINGS, done, in_a_process, refused

EXAMPLES = Path(__file__).parents[2] / "examples"
TALKING = EXAMPLES / "talking_heads.py"

VARIANT = """
from mlx_attn.attention import Variant, register
register(Variant(name={name!r}, score={score!r}, formula="", summary=""))
"""

CHOICE = "from mlx_attn.attention import choice\n"

pytestmark = pytest.mark.usefixtures("no_plugins")


@pytest.fixture
def talk(workshop) -> Path:
    """The example's own copy in the working directory."""
    return Path(shutil.copy(TALKING, workshop / "talk.py"))


@pytest.fixture
def trained(train, talk) -> Path:
    """A run of talking heads; the file is forgotten again."""
    done(train("--plugin", str(talk), "--variant", "talk", "--out", "runs/talk"))
    unload_plugins()
    return Path("runs/talk")


def file(text: str, name: str = "mine.py") -> str:
    Path(name).write_text(text)
    return name


# A run records its files.


def test_a_run_records_the_files_that_it_uses(trained, talk, train):
    settings = json.loads((trained / "config.json").read_text())
    (plugin,) = settings["plugins"]
    assert settings["variant"] == "talk"
    assert plugin["path"] == str(talk.resolve())
    assert plugin["names"] == ["logits=talk", "mixing=talk"]
    assert len(plugin["sha256"]) == 64
    assert train("--plugin", str(talk), "--out", "runs/plain").exit_code == 0
    assert "plugins" not in json.loads(Path("runs/plain/config.json").read_text())


@pytest.mark.parametrize(
    "arguments",
    [
        ["sample", "runs/talk", "--max-tokens=3"],
        ["convert", "runs/talk", "--to=merged"],
        ["train", "--init-from=runs/talk", "--steps=8"],
        ["open", "runs/talk", "--no-browser"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_reading_a_run_needs_the_file_and_runs_none_unasked(trained, talk, run_command, arguments):
    line = refused(run_command(*arguments, input="the cat\n"), 2)
    assert line.startswith("Error: this run uses talk.py (sha256 ")
    assert f"add --plugin {talk.resolve()}" in line
    assert not plugins._loaded
    done(run_command(*arguments, "--plugin", str(talk), input="the cat\n"))


def test_an_export_is_imported_with_the_file_that_it_needs(trained, talk, run_command):
    plugin = f"--plugin={talk}"
    done(run_command("export", "runs/talk", "--to=mlx-lm", "--out=folder", plugin))
    done(run_command("import", "folder", "--out=runs/again", plugin))


EXAMPLE_FLAGS = {
    "talking_heads": ["--variant=talk"],
    "temperature": ["--variant=merged", "--logits=sharpness"],
    "differential": ["--variant=diff"],
    "stick_breaking": ["--variant=stick"],
    "retention": ["--variant=retention"],
}


@pytest.mark.parametrize("example", EXAMPLE_FLAGS)
def test_every_example_trains_and_is_read_or_refused_with_the_reason(train, run_command, example):
    plugin = f"--plugin={EXAMPLES / example}.py"
    done(train(plugin, *EXAMPLE_FLAGS[example], "--out=runs/one"))
    done(run_command("probe", "runs/one", plugin))
    result = run_command("convert", "runs/one", "--to=merged-output", plugin)
    refused = example == "differential"
    assert result.exit_code == (2 if refused else 0), result.output
    assert ("is not affine in x" in result.stderr) == refused


def test_the_guide_shows_the_whole_example():
    _, code = TALKING.read_text().split('"""\n\n', 1)
    page = (EXAMPLES.parent / "docs" / "your-own-variant.md").read_text()
    assert code in page
    assert f"(sha256 {sha256(TALKING.read_bytes()).hexdigest()[:12]})" in page


def test_a_path_is_named_only_if_the_recorded_file_is_there(trained, talk, run_command):
    """A run from elsewhere could point to any file of yours."""
    talk.write_text(talk.read_text() + "# another\n")
    assert "add --plugin PATH/talk.py" in run_command("sample", "runs/talk").stderr
    talk.unlink()
    for command in ("sample", "open", "loss"):
        assert "add --plugin PATH/talk.py" in run_command(command, "runs/talk").stderr


def test_a_changed_or_deleted_file_that_is_read_is_noticed_in_one_line(train, talk, run_command):
    table = talk.with_name(file("1", "table.txt"))
    other = file(VARIANT.format(name="other", score="merged"), "other.py")
    reads = f"import os\nif os.path.exists({str(table)!r}): open({str(table)!r}).close()\n"
    loads = f"import mlx_attn\nmlx_attn.load_plugins({other!r})\n"  # before it reads
    talk.write_text(talk.read_text() + loads + reads)
    done(train("--plugin", str(talk), "--variant", "talk", "--out", "runs/talk"))
    command = ["sample", "runs/talk", "--max-tokens=3", "--plugin", "talk.py"]
    assert run_command(*command).exit_code == 0  # without a warning: those are errors here
    for path, text in ((table, "2"), (table, ""), (talk, f"{talk.read_text()}# improved\n")):
        path.write_text(text) if text else path.unlink()
        shown = in_a_process("-m", "mlx_attn", *command)
        assert shown.returncode == 0, shown.stderr
        start = f"Warning: {path.name} has changed since this run was trained (sha256 "
        assert shown.stderr.count(start) == 1


def test_what_a_changed_plugin_imports_and_loads_is_run_again(workshop, monkeypatch):
    monkeypatch.syspath_prepend(workshop)
    other = file(VARIANT.format(name="other", score="merged"), "other.py")
    runs = f"import mlx_attn, beside\nmlx_attn.load_plugins({other!r})"
    mine = file(runs + VARIANT.format(name="mine", score="merged"))
    for score in ("merged", "no_query"):
        file(VARIANT.format(name="beside", score=score), "beside.py")
        (plugin,) = mlx_attn.load_plugins(mine)
        assert plugin.names == ("variant=beside", "variant=other", "variant=mine")
        assert find_variant("beside").score == score


def test_a_converted_run_records_the_file_that_it_was_trained_with(trained, talk, run_command):
    talk.write_text(talk.read_text() + "# another\n")
    with pytest.warns(UserWarning, match="talk.py has changed since this run was trained"):
        done(run_command("convert", "runs/talk", "--to=merged", "--plugin=talk.py"))
    new, old = open_run(Path("runs/talk-merged")), open_run(trained)
    assert new.settings["plugins"] == old.settings["plugins"]


# Positions in the heads.

TURNED = """
import mlx.core as mx
from mlx_attn.attention import choice


@choice("position", "turned", "RoPE", weights={"gain": lambda c: mx.ones(c.head_dim)})
def turned(a, y, positions):
    half = y.shape[-1] // 2
    turns = positions[:, None] * 10000.0 ** (-mx.arange(half) / half)
    first, second, cos, sin = y[..., :half], y[..., half:], mx.cos(turns), mx.sin(turns)
    return mx.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
"""


def test_a_position_written_as_rope_trains_as_rope_and_decodes_and_is_not_converted(
    train, run_command
):
    losses = []
    for position in ("rope", "turned"):
        flags = ["--position", position, f"--out=runs/{position}", "--window=5", "--json"]
        reports = done(train("--plugin", file(TURNED), *flags)).splitlines()
        losses.append(json.loads(reports[-1])["val_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    done(run_command("sample", "runs/turned", "--max-tokens=3", "--plugin=mine.py"))
    line = refused(run_command("convert", "runs/turned", "--to=merged", "--plugin=mine.py"), 2)
    assert "turns queries and keys" in line


def test_a_choice_that_breaks_a_law_is_refused_before_training(train):
    leak = '@choice("logits", "own", "s")\ndef f(a, s, *rest): return s + s[..., ::-1]'
    line = refused(train("--plugin", file(CHOICE + leak), "--logits=own", "--out=runs/own"), 2)
    assert "logits=own lets a token read later ones" in line
    assert not Path("runs/own").exists()


ENDS = """
__import__("sys").stdout.write("as a module that it imports")
@choice("logits", "own", "s")
def f(layer, s):
    print("hello")
    raise SystemExit(0)
"""


def test_a_function_that_prints_and_ends_the_process_is_an_error_and_no_result(train, run_command):
    judged = "compare", "--variants=standard", "--arm=own: logits=own", "--exit-code", "--json"
    for result in (
        train("--logits=own", *(plugin := ["--plugin", file(CHOICE + ENDS)])),
        run_command(*judged, *plugin),
    ):
        assert result.exit_code == 1
        assert "hello" in result.stderr
        assert "line 7: SystemExit: 0" in result.stderr
        assert result.stdout == ""


# Files that cannot be used.


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\n\ny = x / 0\n", "line 3: ZeroDivisionError: division by zero"),
        ("class Own(BaseException): ...\nraise Own('no')\n", "line 2: Own: no"),
        ("x = 1\n", "registers nothing"),
        (VARIANT.format(name="keyless", score="separate"), "'keyless' is registered already"),
        (VARIANT.format(name="two_words", score="separate"), "'two_words' cannot be typed"),
        (VARIANT.format(name="own", score="sepparate"), "variant 'own': score='sepparate' must be"),
        (CHOICE + '@choice("short_conv", "l", "")\ndef f(x): return x', "'short_conv' must be one"),
        (CHOICE + 'choice("logits", "l", "", init=1)(print)', "init= must be a function"),
        (CHOICE + 'choice("logits", "l", "", weights={"w": 1})(print)', "functions by name"),
        (CHOICE + 'choice("value", "l", "", input_weights="w")(print)', "a tuple of names"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(workshop, run_command, text, complaint):
    line = refused(run_command("variants", "--plugin", file(text)), 2)
    assert f"{Path('mine.py').resolve()}" in line
    assert complaint in line
    assert "line None" not in line
    assert not plugins._loaded


def test_the_hints_after_a_training_name_the_file(trained, talk):
    hints = what_next(open_run(trained))
    assert len(hints) == 2
    assert all(line.endswith(f" runs/talk --plugin {talk.resolve()}") for line in hints)


def test_a_path_in_a_hint_can_be_pasted(trained, talk, run_command):
    config = trained / "config.json"
    settings = json.loads(config.read_text())
    odd = Path(shutil.copy(talk, "a b $(touch PWNED).py")).resolve()
    settings["plugins"][0]["path"] = str(odd)
    config.write_text(json.dumps(settings))
    words = shlex.split(run_command("sample", "runs/talk").stderr)
    assert words[-2:] == ["--plugin", str(odd)]


# From Python files are named with plugins=, with load_plugins, or in the environment.


def test_a_run_is_read_with_the_files_that_are_named(trained, talk, monkeypatch):
    model = mlx_attn.load(trained, plugins=[talk])
    assert len(model.generate("the", max_tokens=3)) == 3
    unload_plugins()
    assert mlx_attn.train(plugins=talk, variant="talk", **TINY_SETTINGS).run().model
    assert mlx_attn.load(trained)
    unload_plugins()
    monkeypatch.setenv("MLX_ATTN_PLUGINS", str(talk))
    assert mlx_attn.load(trained)


def test_a_file_that_is_missing_is_asked_for_in_python_s_words(trained, talk):
    for read in (mlx_attn.load, mlx_attn.resume):
        with pytest.raises(ConfigError, match=r"^this run uses talk\.py") as told:
            read(trained)
        assert str(told.value).endswith(f"add plugins=['{talk.resolve()}']")


def test_what_no_file_holds_cannot_be_kept(workshop, own_rows):
    code = compile("lambda a, s: s", "<cell>", "eval")
    choice("logits", "cell", "s")(eval(code, {"__name__": "__main__"}))
    assert mlx_attn.train(logits="cell", **TINY_SETTINGS).run().model
    with pytest.raises(ConfigError, match="logits=cell is defined in <cell>, which is no file"):
        mlx_attn.train("runs/cell", logits="cell", **TINY_SETTINGS)
    with pytest.raises(ConfigError, match="begin the cell with %%writefile mine"):
        mlx_attn.compare("standard", "cells: standard, logits=cell", data="story.txt")
    assert not Path("runs/cell").exists()


def test_a_cell_can_be_run_again_changed_and_written_to_a_file(workshop):
    variant = VARIANT.format(name="cell", score="separate")
    file(f"{CHOICE}choice('logits', 'cell', '')(lambda layer, s: 2 * s){variant}")
    cells = """cell = open('mine.py').read()
exec(cell)
exec(cell.replace('separate', 'no_query'))
import mlx_attn
print(mlx_attn.load_plugins('mine.py')[0].names)
exec(cell)"""
    told = in_a_process("-c", cells)
    assert told.stdout == "('logits=cell', 'variant=cell')\n"
    assert told.stderr.endswith("'cell' is registered already: choose another name\n")
