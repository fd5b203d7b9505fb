"""The pages of the site outside docs/: the README as home, and what it and the guide link to.

Links are written for a reader of the repository; here they are turned into links of the site.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
HOME = {"README.md": "index.md"}
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PLACE_OF_FOLDERS = "ARCHITECTURE.md"
_LINK = re.compile(r'(\]\(|src="|srcset=")(?!https?:|#|mailto:)([^)"\s#]*)')


def site_path(path: str) -> str:
    """Where a file of the repository is on the site."""
    return HOME.get(path, path.removeprefix("docs/"))


def rewritten(text: str, page: str) -> str:
    """A page whose relative links lead to where their files are on the site."""
    here, there = posixpath.dirname(page), posixpath.dirname(site_path(page))

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, found[2]))
        if (ROOT / target).is_dir():  # the repository shows a folder, the site has none
            target = PLACE_OF_FOLDERS
        return found[1] + posixpath.relpath(site_path(target), there or ".")

    return _LINK.sub(link, text)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and the source files that pages link to."""
    pages = [ROOT / page for page in PAGES if (ROOT / page).is_file()]
    for page in pages:
        text = rewritten(page.read_text(encoding="utf-8"), page.name)
        files.append(File.generated(config, site_path(page.name), content=text))
    texts = [page.read_text(encoding="utf-8") for page in [*pages, *(ROOT / "docs").glob("*.md")]]
    linked = {found[2].removeprefix("../") for text in texts for found in _LINK.finditer(text)}
    for path in sorted(linked):
        if path.endswith(".py") and (ROOT / path).is_file():
            content = (ROOT / path).read_text(encoding="utf-8")
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page in docs/."""
    if page.file.generated_by or not page.file.abs_src_path:
        return markdown
    return rewritten(markdown, f"docs/{page.file.src_uri}")
