"""The documentation says what the program does. Run as a script, it rewrites the README's table."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from mlx_attn.attention.config import VARIANTS
from mlx_attn.cli.main import COMMANDS
from mlx_attn.model.config import PRESETS, GPTConfig
from mlx_attn.text.tasks import TASKS
from mlx_attn.training.config import TextConfig, TrainConfig

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "mlx_attn"
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
MARKS = re.compile(r"(<!-- variants:.*?-->\n)(.*?)(<!-- /variants -->)", re.DOTALL)


def variants_table() -> str:
    """The table of variants in Markdown."""
    rows = ["| variant | formula | |", "|---|---|---|"]
    rows += [f"| `{v.name}` | `{v.formula}` | {v.summary} |" for v in VARIANTS.values()]
    return "\n".join(rows) + "\n"


def test_the_readme_s_table_is_the_table_of_variants():
    found = MARKS.search(README.read_text(encoding="utf-8"))
    assert found
    assert found[2] == variants_table(), f"run: python {Path(__file__).relative_to(ROOT)}"


def test_the_readme_s_two_commands_stand_on_its_first_screen():
    first_screen = README.read_text(encoding="utf-8").splitlines()[:24]
    assert "pip install -e . && python train.py" in first_screen
    assert "pip install -e '.[dev]' && pytest" in first_screen


def test_the_readme_s_pictures_are_there_light_and_dark_and_small():
    text = README.read_text(encoding="utf-8")
    named = re.findall(r'(?:src|srcset)="([^"]+)"|!\[[^]]*\]\(([^)]+)\)', text)
    pictures = {ROOT / (first or second) for first, second in named}
    assert pictures == {*(ROOT / "docs" / "pictures").iterdir()}
    assert all(picture.stat().st_size < 300_000 for picture in pictures)


def test_the_readme_s_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_in_the_documentation_s_python_work(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in re.findall(r"^(?:from|import) .*", block, re.MULTILINE):
            exec(line, {})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_guide(command):
    assert f"`{command}`" in (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_in_the_guide(preset):
    assert f"`{preset}`" in (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_in_its_page(task):
    assert f"| `{task}` |" in (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_every_setting_has_a_help_text():
    for setting in (*fields(GPTConfig), *fields(TrainConfig), *fields(TextConfig)):
        assert setting.metadata.get("help"), setting.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_path_in_the_architecture_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|toml|md|html|css)))`", text))
    assert len(paths) > 50
    assert not {p for p in paths if not (ROOT / p).exists() and not any(PACKAGE.rglob(p))}


def test_every_name_beside_a_path_in_the_architecture_is_defined_there():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, | and )?)+)", text):
        source = (PACKAGE / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            last = name.rpartition(".")[2]
            assert re.search(rf"^\s*(?:(?:def|class) )?{last}\b[ (:=]", source, re.MULTILINE), name


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    README.write_text(MARKS.sub(lambda m: m[1] + variants_table() + m[3], text), encoding="utf-8")
