"""`mlx-attn open` from the command line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import refused


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The addresses that the browser was asked to show."""
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    return asked


def test_it_writes_the_page_into_the_run_and_opens_it(nano, opened, run_command):
    made = run_command("open", "nano")
    page = nano / "runs" / "nano" / "explore.html"
    assert (opened, made.stdout) == ([page.as_uri()], "")
    assert f"wrote {page.relative_to(Path.cwd())}" in made.stderr


def test_it_goes_where_it_is_asked_for_and_json_says_how_large_it_is(nano, opened, run_command):
    made = run_command("open", "nano", "--no-browser", "--html", "here.html", "--json")
    size = Path("here.html").stat().st_size
    assert (opened, json.loads(made.stdout)) == ([], {"path": "here.html", "bytes": size})


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_html_replaces_a_page_and_anything_else_if_told_to(nano, run_command):
    to_page = ["open", "nano", "--no-browser", "--html=page.html"]
    for _ in range(2):
        assert run_command(*to_page).exit_code == 0
    Path("page.html").write_text("mine")
    assert run_command(*to_page, "--overwrite").exit_code == 0
    assert "generator" in Path("page.html").read_text("utf-8")


def test_a_model_too_large_for_a_page_is_refused_at_once(nano, run_command, monkeypatch):
    monkeypatch.setattr("mlx_attn.explore.manifest.LARGEST", 9)
    monkeypatch.setattr("mlx_attn.explore.page.head_numbers", None)  # not called
    assert "holds at most 9" in refused(run_command("open", "nano", "--no-browser"), 2)


def test_without_a_run_it_lists_all_runs_and_a_prompt_goes_to_the_latest(
    nano, train, opened, run_command
):
    assert train("--name=other", "--quiet").exit_code == 0
    made = run_command("open", "--json")
    page = nano / "runs" / "home.html"
    assert json.loads(made.stdout) == {"path": "runs/home.html", "bytes": page.stat().st_size}
    assert opened == [page.as_uri()]
    assert "story.txt" in refused(run_command("open", "--html=story.txt"), 1)
    assert [row["name"] for row in data_of(page)["home"]["rows"]] == ["other", "nano"]
    run_command("open", "--no-browser", "--prompt=the red cat")
    assert data_of(nano / "runs" / "other" / "explore.html")["texts"] == ["the red cat"]
