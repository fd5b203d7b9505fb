"""The documentation agrees with the program, and its links lead somewhere."""

import importlib
import inspect
import re
import tomllib
from pathlib import Path

import blocks
import make
import pytest

import mlx_attn
from mlx_attn import attention
from mlx_attn.cli.main import COMMANDS
from mlx_attn.convert.conversions import CONVERSIONS
from mlx_attn.model.config import PRESETS
from mlx_attn.text.tasks import TASKS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mlx_attn"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
INDEX = ROOT / "llms.txt"


def readme() -> str:
    return make.README.read_text(encoding="utf-8")


def page_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_the_readme_s_table_is_made_from_the_table_of_variants():
    found = make.TABLE.search(readme())
    assert found
    assert found[2] == make.variants_table(), "run: python docs/make.py"


def test_the_page_of_variants_has_a_card_of_each_group_by_group():
    """tests/test_every_variant.py checks the contents of the cards."""
    written = page_of("variants").splitlines()
    assert [line for line in written if line.startswith("##")] == make.headings()


def test_the_readme_has_the_lines_that_install_train_and_test():
    """On separate lines: CI runs the last one unchanged."""
    assert "\npip install -e . && python train.py\n" in readme()
    assert "\npip install -e '.[dev]' && pytest\n" in readme()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_in_the_documentation_s_python_work(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in re.findall(r"^(?:from|import) .*", block, re.MULTILINE):
            exec(line, {})


def test_the_pages_have_blocks():
    assert all(blocks.blocks(page) for page in blocks.PAGES)


@pytest.mark.slow
def test_every_block_of_the_pages_runs():
    """Word for word: `.ci/run` runs the README's."""
    blocks.main(blocks.PAGES)


def test_every_command_preset_task_and_conversion_is_in_its_page():
    guide = page_of("guide")
    assert [name for name in (*COMMANDS, *PRESETS, *TASKS) if f"`{name}`" not in guide] == []
    rows = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \|$", page_of("conversions"), re.MULTILINE)
    assert rows[1:] == [(row.name, row.identity, row.exact) for row in CONVERSIONS.values()]


@pytest.mark.parametrize("page", [*PAGES, INDEX], ids=lambda page: page.name)
def test_links_and_pictures_of_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in [*links, *pictures]:
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_llms_txt_names_every_page():
    linked = re.findall(r"\]\(([^)]+)\)", INDEX.read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


def test_the_citation_is_of_this_version_and_licence():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    facts = dict(re.findall(r"^([a-z-]+): (.+)$", citation, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (facts["version"], facts["license"]) == (mlx_attn.__version__, project["license"])


def test_every_path_in_the_architecture_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|toml|md|html|css)))`", text))
    assert len(paths) > 30
    packages = PACKAGE, ROOT / "studies"
    inside = {p for p in paths for package in packages if any(package.rglob(p))}
    assert not {p for p in paths - inside if not (ROOT / p).exists()}


def public_names() -> list[str]:
    """Every name of the public modules, and every public attribute of the API's classes."""
    classes = [getattr(mlx_attn, name) for name in mlx_attn.__all__]
    attributes = {name for one in classes if isinstance(one, type) for name in dir(one)}
    names = {*mlx_attn.__all__, *attention.__all__, *attributes}
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


def test_the_site_sets_formulas_and_rewrites_links_of_the_repository():
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    hooks = importlib.import_module("site_hooks")
    block = r'<div class="arithmatex">\[w &lt; 1\]</div>'
    made = hooks.on_page_content(block)
    assert "arithmatex" not in made
    assert "<mo>&#x0003C;</mo>" in made
    source = '<source media="(prefers-color-scheme: dark)" srcset="x-dark.png">\n'
    both = hooks.on_page_content(f'<picture>\n{source}<img src="x-light.png" alt="a"></picture>')
    assert re.findall(r'(?:srcset|src)="(.*?)"', both) == [
        "x-light.png#only-light",
        "x-dark.png#only-dark",
    ]
    assert hooks.rewritten("[a](docs/tour.md#x)", "README.md") == "[a](tour.md#x)"
    assert hooks.rewritten('src="docs/pictures/a.png"', "README.md") == 'src="pictures/a.png"'
