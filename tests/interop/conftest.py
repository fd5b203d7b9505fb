from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from make import moved

from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.runs import LoadedRun
from mlx_attn.text.foreign import ForeignTokenizer, bytes_by_symbol
from mlx_attn.text.tokenizers import Tokenizer, train_tokenizer
from mlx_attn.training.config import resolve
from tests.runs import create_run

TEXT = "The quick  brown fox isn't lazy.\n\nIt jumps over 13 dogs; naïve ones too. " * 40
SIZES = {"context_length": 48, "emb_dim": 32, "n_heads": 4, "n_layers": 2}
GPT2 = {"position": "learned", "norm": "layernorm", "activation": "gelu", "bias": True}


def merges(count: int) -> str:
    """The first merges of letters, as GPT-2 writes them."""
    letters = [symbol for symbol in bytes_by_symbol() if symbol.isascii() and symbol.isalpha()]
    pairs = islice(product(letters, letters), count)
    return "#version: 0.2\n" + "\n".join(map(" ".join, pairs)) + "\n"


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    """One of every kind."""
    made = {kind: train_tokenizer(kind, TEXT, 400) for kind in ("char", "byte", "bpe", "unigram")}
    return {**made, "gpt2": ForeignTokenizer.from_merges(merges(100))}


@pytest.fixture(scope="session")
def make_model() -> Callable[..., GPT]:
    """A model with random weights and biases that are not 0, the same for the same settings."""

    def make(**settings: Any) -> GPT:
        mx.random.seed(3)
        return moved(GPT(GPTConfig(**{"vocab_size": 60, **SIZES, **GPT2, **settings})))

    return make


@pytest.fixture
def make_run(make_model, tokenizers, tmp_path) -> Callable[..., LoadedRun]:
    """Such a model as a run, with a tokenizer."""

    def make(kind: str = "byte", name: str = "run", **settings: Any) -> LoadedRun:
        tokenizer = tokenizers[kind]
        model = make_model(vocab_size=tokenizer.vocab_size, **settings)
        keys = {k: v for k, v in model.config.as_dict().items() if k != "vocab_size"}
        record = resolve({**keys, "tokenizer": kind, "steps": 10}).record(model.config)
        run = create_run(tmp_path / name, record, tokenizer=tokenizer)
        run.save_model(model)
        return LoadedRun(run, model, tokenizer)

    return make


@pytest.fixture
def out(tmp_path) -> Path:
    """Where something is written."""
    return tmp_path / "out"
