from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_attn.errors import RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.repl.commands import handle_input
from mlx_attn.repl.session import Screen, Session
from mlx_attn.run_directory import Run
from mlx_attn.runs import LoadedRun
from mlx_attn.text.tokenizers import train_tokenizer


class Echo(GPT):
    """A model that continues the alphabet from the last letter, with a full stop after z."""

    def features(self, tokens, caches=None):
        return tokens[..., None].astype(mx.float32)

    def head(self, x):
        following = mx.where(x == ord("z"), ord("."), x + 1)
        return 100.0 * (following == mx.arange(self.config.vocab_size))


def loaded(name: str, tokenizer: str = "byte") -> LoadedRun:
    config = GPTConfig(vocab_size=256, context_length=16, emb_dim=8, n_heads=2, n_layers=1)
    run = Run(Path("runs", name), {"variant": "standard"})
    return LoadedRun(run, Echo(config), train_tokenizer(tokenizer, "abcxyz", 0))


@dataclass
class Page(Screen):
    """A screen that remembers: answers as they came, everything else line by line."""

    answers: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def say(self, text: str, quiet: bool = False) -> None:
        self.messages.append(text)

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        self.messages.extend(f"{name}: {meaning}" for name, meaning in rows)

    def stream(self, texts: Iterator[str], heading: str = "") -> None:
        if heading:
            self.answers.append(f"[{heading}]")
        self.answers.append("".join(texts))


RUNS = {"alpha": "byte", "beta": "byte", "letters": "char"}


def open_run(name: str) -> LoadedRun:
    if name not in RUNS:
        raise RunError(f"there is no run '{name}'")
    return loaded(name, RUNS[name])


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def session(page, monkeypatch) -> Session:
    monkeypatch.setattr("mlx_attn.repl.commands.load_run", open_run)
    return Session(open_run("alpha"), page, list, lambda runs, text: Path("page.html"))


@pytest.fixture
def typed(session) -> Callable[..., Session]:
    """Types lines into the session."""

    def type_lines(*lines: str) -> Session:
        for line in lines:
            handle_input(session, line)
        return session

    return type_lines
