"""A text that does not fit into memory is trained on as if it did."""

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.batches import (
    ResidentTokens,
    StreamedTokens,
    read_windows,
    reopened,
    token_source,
)
from mlx_attn.training.config import resolve
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.trainer import Trainer
from tests.training.conftest import TINY


@pytest.fixture
def mapped(corpus: Corpus, tmp_path: Path) -> Corpus:
    """The corpus with its tokens mapped from files, as `prepare` gives it."""

    def on_disk(name: str):
        split = getattr(corpus, name)
        split.tokens.tofile(tmp_path / name)
        return dataclasses.replace(split, tokens=np.memmap(tmp_path / name, np.uint16, "r"))

    return dataclasses.replace(corpus, train=on_disk("train"), val=on_disk("val"))


def train(corpus: Corpus, **settings) -> tuple[list[float], dict[str, Any], float]:
    """The losses, the weights and the validation loss of a few steps."""
    trainer = Trainer(resolve(TINY, settings), corpus)
    losses = [float(trainer.launch_step()[0]) for _ in range(5)]
    weights = {name: array.tolist() for name, array in named_arrays(trainer.model).items()}
    return losses, weights, trainer.evaluate()[0].val_loss


@pytest.mark.parametrize(
    "settings",
    [{}, {"windows": "epochs"}, {"accumulate": 2}, {"compile": "on"}, {"drop_rate": 0.2}],
    ids=str,
)
def test_streamed_and_resident_tokens_train_the_same_bits(mapped, settings):
    assert train(mapped, **settings) == train(mapped, token_memory=0, **settings)


def test_a_text_is_streamed_when_it_is_longer_than_the_memory_for_it():
    tokens = np.zeros(500_001, np.uint16)
    assert isinstance(token_source(tokens, 8, 1), StreamedTokens)
    assert isinstance(token_source(tokens[1:], 8, 1), ResidentTokens)
    assert isinstance(token_source(tokens[:9], 8, 0), StreamedTokens)


@pytest.mark.parametrize("source", [ResidentTokens, StreamedTokens])
def test_a_window_is_the_tokens_from_its_start_and_one_more(mapped, source):
    tokens = source(mapped.train.tokens, 12)
    windows = tokens.windows(tokens.fetch(mx.array([7, 0, 7])))
    assert windows.dtype == mx.uint16
    assert windows.tolist() == [mapped.train.tokens[i : i + 13].tolist() for i in (7, 0, 7)]


def test_no_map_is_left_open_by_reading_windows(mapped, monkeypatch):
    opened = []

    def watched(tokens):
        tokens = reopened(tokens)
        opened.append(weakref.ref(tokens.base))
        return tokens

    source = StreamedTokens(mapped.train.tokens, 12)
    monkeypatch.setattr("mlx_attn.training.batches.reopened", watched)
    for start in range(3):
        source.fetch(mx.array([start]))
    assert [map() for map in opened] == [None] * 3


def test_a_part_of_a_map_is_read_where_it_lies(mapped):
    part = mapped.train.tokens[100:200]
    assert read_windows(part, np.array([5]), 3).tolist() == [part[5:8].tolist()]


def test_validation_reads_from_the_file_what_it_would_from_memory(mapped, corpus):
    model = Trainer(resolve(TINY), corpus).model
    evaluations = [Evaluator(split, 12)(model) for split in (corpus.val, mapped.val)]
    assert evaluations[0] == evaluations[1]
