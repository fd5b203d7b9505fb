import pytest
from click.testing import Result

from mlx_attn.text.tokenizers import train_tokenizer
from tests.cli.conftest import invoke, untrained_run


@pytest.fixture
def place(workshop):
    """A directory with an untrained run, runs/bytes, that reads any text."""
    untrained_run(workshop / "runs" / "bytes", train_tokenizer("byte", "", 0))
    return workshop


def repl(lines: str | bytes, *arguments: str) -> Result:
    """Answers of few tokens; later options win."""
    return invoke("repl", "--max-tokens=8", *arguments, input=lines)


def test_each_line_of_a_pipe_is_answered_without_escape_codes(place):
    lines = b"\xef\xbb\xbf/help\nonce\n\xff\nupon\n/nope\n/quit\nonce\n"
    result = repl(lines, "--stop", "\n", "--seed", "1", "--top-k", "1")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 2
    assert result.stderr.count("tok/s") == 2
    assert "lone surrogate" in result.stderr
    assert "unknown command '/nope'" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_attn_in_a_pipe_writes_a_page_and_opens_no_browser(place, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    result = repl("once\n/attn\n", "--stop", "\n")
    assert "what the heads attend to in the last text: runs/bytes/explore.html" in result.stderr
    assert "once" in (place / "runs" / "bytes" / "explore.html").read_text()
    assert opened == []
