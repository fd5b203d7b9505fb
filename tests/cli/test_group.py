import random
import re
import tomllib
from pathlib import Path

import click
import pytest

import mlx_attn.api
from mlx_attn import __version__
from mlx_attn.about import PREFIX
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.cli.main import COMMANDS, group
from mlx_attn.cli.options import VARIABLES
from mlx_attn.model.config import PRESETS
from mlx_attn.text.stories import generate_story
from tests.cli.conftest import all_commands, in_a_process

ROOT = Path(__file__).parent.parent.parent
HEAVY = ("mlx.core", "numpy", "rich", "sentencepiece", "jaxtyping", "prompt_toolkit")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_imports_nothing_heavy(command):
    code = (
        "import atexit, sys\nfrom mlx_attn.cli.main import main\n"
        f"heavy = lambda: [name for name in {HEAVY!r} if name in sys.modules]\n"
        "atexit.register(lambda: print(heavy(), file=sys.stderr))\n"
        f"main({[*command, '--help']!r})"
    )
    assert in_a_process("-c", code).stderr == "[]\n"


def test_every_variable_of_an_option_is_known():
    options = {str(p.envvar) for command in all_commands() for p in command.params if p.envvar}
    others = "BLAS CODE_PATH DATA_DIR PEERS_PYTHON"
    assert options | {PREFIX + name for name in others.split()} == VARIABLES


def test_train_py_python_m_and_the_installed_script_are_the_same_program():
    shown = in_a_process(str(ROOT / "train.py"), "--help").stdout
    assert shown.startswith("Usage: mlx-attn train [OPTIONS]")
    assert in_a_process("-m", "mlx_attn", "-V").stdout == f"mlx-attn {__version__}\n"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["mlx-attn"] == "mlx_attn.__main__:main"


def flags_in(help_text: str) -> list[str]:
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)(?=[ /\n])", help_text, re.MULTILINE)


def test_no_command_shows_more_than_22_options_and_there_are_at_most_18(run_command):
    shown = {name: flags_in(run_command(name, "--help").stdout) for name in COMMANDS}
    assert {name: len(flags) for name, flags in shown.items() if len(flags) > 22} == {}
    assert len(COMMANDS) <= 18


@pytest.mark.parametrize("name", ["train", "compare", "bench", "variants"])
def test_the_long_help_has_every_option(run_command, name):
    command = group.get_command(click.Context(group), name)
    assert command
    first, everything = (run_command(name, flag).stdout for flag in ("--help", "--help-all"))
    shown = set(flags_in(everything)) - {"--help", "--help-all"}
    assert shown == {option.opts[0] for option in command.params} - {"--help-all"}
    assert set(flags_in(first)) < set(flags_in(everything))


def examples() -> str:
    """The examples at the end of every command's help."""
    return "\n".join(command.epilog or "" for command in all_commands())


def test_texts_in_examples_are_of_the_stories_that_the_first_model_reads():
    generator = random.Random(0)
    stories = "\n".join(generate_story(generator).text for _ in range(500))
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py"), ROOT / "README.md"]
    prose = [page.read_text(encoding="utf-8") for page in pages] + [mlx_attn.api.__doc__ or ""]
    calls = r'(?:--prompt |(?:generate|generate_batch|loss|logits|attention|encode)\()"([^"]+)"'
    texts = {*re.findall(calls, "\n".join([*prose, examples()]))}
    assert len(texts) > 1
    assert {text for text in texts if text not in stories} == set()


def test_runs_in_examples_have_the_names_that_a_training_gives():
    names = {*re.findall(r"(?<!--out )runs/([a-z][\w-]*)", examples())}
    made = tuple(f"{preset}-{variant}" for preset in PRESETS for variant in VARIANTS)
    assert len(names) > 1
    assert {name for name in names if not name.startswith(made)} == set()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mlx-attn tra", {"train"}),
        (
            "mlx-attn train --variant merged-",
            {"merged-no-out-proj", "merged-output", "merged-both"},
        ),
        ("mlx-attn train --score no", {"no_query", "no_key", "nonlinear_query"}),
        ("mlx-attn train --logits temperature+f", {"temperature+forget"}),
        ("mlx-attn compare --variants standard,ta", {"standard,talking-heads"}),
    ],
)
def test_the_shell_completes_names(line, expected):
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    shown = in_a_process("-m", "mlx_attn", _MLX_ATTN_COMPLETE="bash_complete", **asked).stdout
    assert {name.partition(",")[2] for name in shown.splitlines()} == expected
