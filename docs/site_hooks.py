"""Turn the documentation of the repository into a site, as hooks of `mkdocs build`.

The README becomes the home page, and the pages of the root are added. Links in the repository
become links of the site. Formulas become MathML, so the pages load no scripts or fonts for them.
"""

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
HOME = {"README.md": "index.md"}
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
INDEX = "llms.txt"
"""The index that language models read first."""
PLACE_OF_FOLDERS = "ARCHITECTURE.md"
_LINK = re.compile(r'(\]\(|src="|srcset=")(?!https?:|#|mailto:)([^)"\s#]*)')
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
_HERO = re.compile(r"^(# .*?)(?=^## )", re.DOTALL | re.MULTILINE)


def site_path(path: str) -> str:
    """Return the path on the site of a file in the repository."""
    return HOME.get(path, path.removeprefix("docs/"))


def rewritten(text: str, page: str) -> str:
    """Return a page with its relative links changed to the paths of the site."""
    here, there = posixpath.dirname(page), posixpath.dirname(site_path(page))

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, found[2]))
        if (ROOT / target).is_dir():  # the site cannot show a folder
            target = PLACE_OF_FOLDERS
        return found[1] + posixpath.relpath(site_path(target), there or ".")

    return _LINK.sub(link, text)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and the source files that pages link to."""
    pages = [ROOT / page for page in PAGES if (ROOT / page).is_file()]
    for page in pages:
        text = rewritten(page.read_text(encoding="utf-8"), page.name)
        if page.name in HOME:
            text = as_home(text)
        files.append(File.generated(config, site_path(page.name), content=text))
    index = rewritten((ROOT / INDEX).read_text(encoding="utf-8"), INDEX)
    files.append(File.generated(config, INDEX, content=index.replace(".md)", ".html)")))
    texts = [page.read_text(encoding="utf-8") for page in [*pages, *(ROOT / "docs").glob("*.md")]]
    linked = {found[2].removeprefix("../") for text in texts for found in _LINK.finditer(text)}
    for path in sorted(linked):
        if path.endswith(".py") and (ROOT / path).is_file():
            content = (ROOT / path).read_text(encoding="utf-8")
            files.append(File.generated(config, path, content=content))
    return files


def as_home(text: str) -> str:
    """Return the README as a home page, with the text before its first section as the hero."""
    hero = _HERO.sub(r'<div class="hero" markdown>\n\n\1\n\n</div>\n\n', text, count=1)
    return f"---\nhide: [navigation, toc]\n---\n\n{hero}"


def in_both_schemes(found: re.Match[str]) -> str:
    """Return a picture twice: the theme shows the one whose address ends with its scheme.

    The system's preference would not follow the button of the site.
    """
    light = re.sub(r"<source [^>]*prefers-color-scheme: dark[^>]*>\n", "", found[0])
    light = re.sub(r' src="([^"]*)"', r' src="\1#only-light"', light)
    return light + light.replace("-light.", "-dark.").replace("#only-light", "#only-dark")


def on_page_content(content: str, **_: Any) -> str:
    """Set formulas as MathML, and let pictures follow the site's light and dark."""
    return _PICTURE.sub(in_both_schemes, _FORMULA.sub(mathml, content))


def mathml(found: re.Match[str]) -> str:
    """Return a formula as MathML, inline or as a block."""
    display = "inline" if found[1] == "span" else "block"
    formula = convert(html.unescape(found[2]).strip(), display=display)
    return f'<{found[1]} class="formula">{formula}</{found[1]}>'


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page in docs/."""
    if page.file.generated_by or not page.file.abs_src_path:
        return markdown
    return rewritten(markdown, f"docs/{page.file.src_uri}")
