"""`--plugin FILE`: a user's own attention, from training to talking, through the command line."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_attn import plugins
from mlx_attn.attention.config import VARIANTS
from mlx_attn.comparison.plan import make_trial
from mlx_attn.errors import ConfigError
from mlx_attn.plugins import PluginChanged, load_plugins, unload_plugins
from mlx_attn.training.config import resolve
from tests.cli.conftest import completions, done, refused

EXAMPLES = Path(__file__).parents[2] / "examples"
TALKING = EXAMPLES / "talking_heads.py"

VARIANT = """
from mlx_attn.attention.config import Variant, register
register(Variant(name={name!r}, score={score!r}, formula="", summary=""))
"""

CHOICE = "from mlx_attn.attention.layer import choice\n"

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


# What a run says of its files.


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
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_reading_a_run_needs_the_file_and_runs_none_unasked(trained, talk, run_command, arguments):
    line = refused(run_command(*arguments, input="the cat\n"), 2)
    assert line.startswith("Error: this run uses talk.py (sha256 ")
    assert f"add --plugin {talk.resolve()}" in line
    assert not plugins._loaded
    done(run_command(*arguments, "--plugin", str(talk), input="the cat\n"))


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
    for command in (["repl"], ["train", "--resume"], ["probe"]):
        done(run_command(*command, "runs/one", plugin, input="the cat\n"))
    result = run_command("convert", "runs/one", "--to=merged-output", plugin)
    refused = example == "differential"
    assert result.exit_code == (2 if refused else 0), result.output
    assert ("is not affine in x" in result.stderr) == refused


def test_the_guide_shows_the_whole_example():
    _, code = TALKING.read_text().split('"""\n\n', 1)
    assert code in (EXAMPLES.parent / "docs" / "your-own-variant.md").read_text()


def test_the_environment_names_files_too(trained, talk, run_command, monkeypatch):
    monkeypatch.setenv("MLX_ATTN_PLUGINS", str(talk))
    assert run_command("sample", "runs/talk", "--max-tokens=3").exit_code == 0


def test_a_path_is_named_only_if_the_recorded_file_is_there(trained, talk, run_command):
    """A run from elsewhere could point to any file of yours."""
    talk.write_text(talk.read_text() + "# another\n")
    assert "add --plugin PATH/talk.py" in run_command("sample", "runs/talk").stderr
    talk.unlink()
    assert "add --plugin PATH/talk.py" in run_command("sample", "runs/talk").stderr


def test_a_resumed_run_keeps_the_digest_of_the_file_it_began_with(trained, talk, train):
    first = json.loads((trained / "config.json").read_text())["plugins"][0]["sha256"]
    talk.write_text(talk.read_text() + "# improved\n")
    with pytest.warns(PluginChanged):
        assert train("--plugin=talk.py", "--resume=runs/talk", "--steps=8").exit_code == 0
    (plugin,) = json.loads((trained / "config.json").read_text())["plugins"]
    assert plugin["sha256"] == first
    assert plugin["resumed_with"] == [hashlib.sha256(talk.read_bytes()).hexdigest()]


def test_a_changed_file_is_noticed_in_one_line_on_stderr(trained, talk, run_command):
    before = talk.read_text()
    command = ["sample", "runs/talk", "--max-tokens=3", "--plugin", "talk.py"]
    assert run_command(*command).exit_code == 0  # without a warning: those are errors here
    talk.write_text(before + "# improved\n")
    shown = subprocess.run(
        [sys.executable, "-m", "mlx_attn", *command], capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == 0, shown.stderr
    start = "Warning: talk.py has changed since this run was trained (sha256 "
    assert start in shown.stderr
    assert "PluginChanged" not in shown.stderr


# Comparing.

SMALL = ["--reference=none", "--no-tune", "--seeds=1", "--jobs=1"]
NOT_COMPARED = ("--eval-every=3", "--log-every=2")


def test_trainings_with_another_version_of_a_file_are_others(workshop, talk):
    def digest(variant: str) -> str:
        load_plugins([talk])
        return make_trial("arm", resolve({"variant": variant}), 0, 1.0, "text").digest

    before = {variant: digest(variant) for variant in ("standard", "talk")}
    assert before["talk"] == digest("talk")
    talk.write_text(talk.read_text() + "# improved\n")
    assert before["talk"] != digest("talk")
    assert before["standard"] == digest("standard")


def test_an_error_in_a_worker_names_the_file(workshop, run_command, tiny_flags):
    sizes = [flag for flag in tiny_flags if flag not in NOT_COMPARED]
    broken = TALKING.read_text().replace("bgij,gh->bhij", "bgij,jh->bhij", 1)
    file(broken, "broken.py")
    arguments = ["--plugin=broken.py", "--variants=standard,talk", *sizes, *SMALL, "--quiet"]
    result = run_command("compare", *arguments)
    assert result.exit_code == 1
    assert re.search(r"broken\.py, line \d+: ValueError", result.stderr)


# What is shown.


def test_variants_show_it(workshop, talk, run_command):
    rows = json.loads(run_command("variants", "--plugin=talk.py", "--json").stdout)["variants"]
    assert rows[-1]["name"] == "talk"
    assert rows[-1]["cost"]["parameters"] > rows[0]["cost"]["parameters"]


def test_the_shell_completes_it(talk):
    line = "mlx-attn train --plugin talk.py --logits self_mask+ta"
    assert "self_mask+talk" in completions(line)


def test_choices_compose_with_flags_and_an_unknown_one_is_answered_with_all(workshop, talk, train):
    line = refused(train("--plugin=talk.py", "--mixing=tlak"), 2)
    assert line.startswith("Error: mixing='tlak' must be one of softmax, uniform, ")
    assert line.endswith("talk\n")
    mixed = ["--variant=merged", "--mixing=talk", "--no-out-proj"]
    done(train("--plugin=talk.py", *mixed, "--out=runs/mixed"))
    (plugin,) = json.loads(Path("runs/mixed/config.json").read_text())["plugins"]
    assert plugin["names"] == ["mixing=talk"]


def test_a_variant_may_set_what_it_needs_beside_its_maps(workshop, train, run_command):
    needs = 'score="separate", position="rope", qk_norm=True, n_kv_heads=1'
    text = VARIANT.format(name="turning", score="separate").replace("score='separate'", needs)
    plugin = f"--plugin={file(text)}"
    assert train(plugin, "--variant=turning", "--out=runs/own").exit_code == 0
    settings = json.loads(Path("runs/own/config.json").read_text())
    assert settings["variant"] == "turning"
    model = settings["model"]
    assert (model["position"], model["qk_norm"], model["n_kv_heads"]) == ("rope", True, 1)
    rows = json.loads(run_command("variants", plugin, "--json").stdout)["variants"]
    assert rows[-1]["cost"]["parameters"] < rows[0]["cost"]["parameters"]


# Files that cannot be used.


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\n\ny = x / 0\n", "line 3: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("x = 1\n", "registers nothing"),
        (VARIANT.format(name="standard", score="separate"), "line 3: 'standard' is registered"),
        (VARIANT.format(name="two_words", score="separate"), "'two_words' cannot be typed"),
        (VARIANT.format(name="own", score="sepparate"), "variant 'own': score='sepparate' must be"),
        (CHOICE + '@choice("norm", "rmsnorm", "")\ndef f(x): return x', "'rmsnorm' is registered"),
        (CHOICE + '@choice("loss", "l", "")\ndef f(x): return x', "map='loss' must be one of"),
        (
            CHOICE + '@choice("optimizer", "o", "")\ndef f(): return None',
            "optimizer=o is called with c, and cannot be: too many positional arguments",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(workshop, run_command, text, complaint):
    line = refused(run_command("variants", "--plugin", file(text)), 2)
    assert f"{Path('mine.py').resolve()}" in line
    assert complaint in line
    assert "line None" not in line
    assert not plugins._loaded


def test_a_file_that_is_missing_is_named(workshop, run_command):
    line = refused(run_command("variants", "--plugin=nowhere.py"), 1)
    assert "nowhere.py: cannot be read (No such file or directory)" in line


def test_two_files_cannot_register_one_name(workshop):
    load_plugins([file(VARIANT.format(name="own", score="separate"), "one.py")])
    with pytest.raises(ConfigError, match=r"two\.py, line 3: 'own' is registered already"):
        load_plugins([file(VARIANT.format(name="own", score="merged"), "two.py")])


def test_a_file_is_imported_once_and_replaced_when_it_changes(workshop):
    (first,) = load_plugins([file(VARIANT.format(name="own", score="separate"))])
    assert load_plugins(["mine.py"]) == [first]
    load_plugins([file(VARIANT.format(name="own", score="merged"))])
    assert VARIANTS["own"].score == "merged"
    assert not list(Path().glob("__pycache__"))


def test_a_path_in_a_hint_can_be_pasted(trained, talk, run_command):
    config = trained / "config.json"
    settings = json.loads(config.read_text())
    odd = Path(shutil.copy(talk, "a b $(touch PWNED).py")).resolve()
    settings["plugins"][0]["path"] = str(odd)
    config.write_text(json.dumps(settings))
    words = shlex.split(run_command("sample", "runs/talk").stderr)
    assert words[-2:] == ["--plugin", str(odd)]
