"""The documentation says what the program does. Run as a script, it rewrites the README's table."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import mlx_attn
from mlx_attn import api, attention
from mlx_attn.attention.config import VARIANTS
from mlx_attn.attention.conversions import CONVERSIONS
from mlx_attn.cli.main import COMMANDS
from mlx_attn.model.config import PRESETS
from mlx_attn.text.tasks import TASKS

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "mlx_attn"
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
INDEX = ROOT / "llms.txt"
MARKS = re.compile(r"(<!-- variants:.*?-->\n)(.*?)(<!-- /variants -->)", re.DOTALL)
QUESTIONED = ("standard", "no-out-proj", "merged", "no-query", "no-key", "no-value")
"""The variants of the README's table: those of its questions. All are in docs/variants.md."""
ANSWERS = ROOT / "docs" / "answers"
PICTURES = ROOT / "docs" / "pictures"
STILL, MOVING = 300_000, 1_500_000
"""The most bytes of a picture."""


def variants_table() -> str:
    """The README's table of variants in Markdown."""
    shown = [VARIANTS[name] for name in QUESTIONED]
    rows = [f"| `{v.name}` | `{v.formula}` | {v.summary} |" for v in shown]
    return "\n".join(["| variant | formula | |", "|---|---|---|", *rows, ""])


def readme() -> str:
    return README.read_text(encoding="utf-8")


def page_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_the_readme_s_table_is_made_from_the_table_of_variants():
    found = MARKS.search(readme())
    assert found
    assert found[2] == variants_table(), f"run: python {Path(__file__).relative_to(ROOT)}"
    assert f"All {len(VARIANTS)} variants are in" in readme()


def test_the_readme_s_first_screen_is_a_sentence_a_picture_and_one_line_to_type():
    lines = [line for line in readme().splitlines()[:20] if line]
    assert lines[0] == "# mlx_attn"
    assert lines[1].endswith("see what the part was for.")
    assert lines[2] == "<picture>"
    assert lines[lines.index("</picture>") + 1 :][:3] == ["```sh", "uvx mlx-attn demo", "```"]


def test_the_readme_is_short_and_has_the_lines_that_install_train_and_test():
    """On lines of their own: CI runs the last one as it stands."""
    assert "\npip install -e . && python train.py\n" in readme()
    assert "\npip install -e '.[dev]' && pytest\n" in readme()
    commands = re.search(r"## Ten commands\n\n```sh\n(.*?)```", readme(), re.DOTALL)
    assert commands
    assert len(commands[1].splitlines()) == 10
    assert len(re.findall(r"\]\([^)]+\.md[^)]*\)", readme())) <= 12
    assert len(readme().splitlines()) <= 140


@pytest.mark.parametrize("picture", sorted(PICTURES.iterdir()), ids=lambda path: path.name)
def test_pictures_are_shown_somewhere_and_small(picture):
    shown = [page for page in PAGES if f"pictures/{picture.name}" in page.read_text("utf-8")]
    assert shown
    assert picture.stat().st_size < (MOVING if picture.suffix == ".webp" else STILL)


def test_the_readme_s_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_in_the_documentation_s_python_work(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in re.findall(r"^(?:from|import) .*", block, re.MULTILINE):
            exec(line, {})


def test_every_command_preset_task_and_conversion_is_in_its_page():
    guide, tasks = page_of("guide"), page_of("tasks")
    assert [name for name in (*COMMANDS, *PRESETS) if f"`{name}`" not in guide] == []
    assert [name for name in TASKS if f"| `{name}` |" not in tasks] == []
    rows = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \|$", page_of("conversions"), re.MULTILINE)
    assert rows[1:] == [(row.name, row.identity, row.exact) for row in CONVERSIONS.values()]


@pytest.mark.parametrize("page", [*PAGES, INDEX], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_llms_txt_names_every_page():
    linked = re.findall(r"\]\(([^)]+)\)", INDEX.read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


def test_the_citation_is_of_this_version_and_licence():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    facts = dict(re.findall(r"^([a-z-]+): (.+)$", citation, re.MULTILINE))
    assert facts["version"] == mlx_attn.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert facts["license"] == project["license"]
    assert project["authors"][0]["name"] in citation


def test_every_path_in_the_architecture_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|toml|md|html|css)))`", text))
    assert len(paths) > 50
    packages = PACKAGE, ROOT / "studies"
    inside = {p for p in paths for package in packages if any(package.rglob(p))}
    assert not {p for p in paths - inside if not (ROOT / p).exists()}


def test_every_name_beside_a_path_in_the_architecture_is_defined_there():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, | and )?)+)", text):
        place = ROOT if path.startswith("studies/") else PACKAGE
        source = (place / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            last = name.rpartition(".")[2]
            assert re.search(rf"^\s*(?:(?:def|class) )?{last}\b[ (:=]", source, re.MULTILINE), name


def public_names() -> list[str]:
    """Every name of the public modules, and every public attribute of the API's classes."""
    classes = [getattr(api, name) for name in api.__all__]
    attributes = {name for one in classes if isinstance(one, type) for name in dir(one)}
    names = {*mlx_attn.__all__, *api.__all__, *attention.__all__, *attributes}
    return ["__version__", *sorted(name for name in names if not name.startswith("_"))]


def test_every_public_name_is_in_the_list_of_them():
    section = page_of("python").split("## Every public name")[1].split("\n## ")[0]
    assert [n for n in public_names() if not re.search(rf"`{n}[`(]", section)] == []


@pytest.mark.parametrize("name", ["load", "train", "resume", "compare"])
def test_the_arguments_of_the_list_are_those_of_the_function(name):
    page = page_of("python").split("## Every public name")[1]
    shown = re.search(rf"^\| `{name}\((.*)\)` \|", page, re.MULTILINE)
    assert shown
    own = inspect.signature(getattr(mlx_attn, name)).parameters
    assert re.findall(r"(?:^|, )\**(\w+)", re.sub(r"\(\w*[^)]*\)", "", shown[1])) == [*own]


if __name__ == "__main__":
    README.write_text(MARKS.sub(lambda m: m[1] + variants_table() + m[3], readme()), "utf-8")
