"""Several processes make the tokens that one would."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text import token_store as encoders
from mlx_attn.text.token_store import encoding, worker_count
from mlx_attn.text.tokenizers import Tokenizer, train_tokenizer

TEXT = "the café is open.\n" * 30


@pytest.fixture
def saved(tmp_path):
    tokenizer = train_tokenizer("bpe", TEXT, 330)
    tokenizer.save(tmp_path)
    return tokenizer, tmp_path


def test_other_processes_make_the_same_tokens(saved):
    tokenizer, _ = saved
    with encoding(*saved, workers=2) as encode:
        promises = [encode(TEXT[start:]) for start in range(5)]
        for start, promise in enumerate(promises):
            assert promise().tolist() == tokenizer.encode(TEXT[start:]).tolist()


def encode_after_a_kill(tokenizer: Tokenizer, folder: Path) -> None:
    with encoding(tokenizer, folder, workers=2) as encode:
        encode(TEXT)()
        worker = multiprocessing.active_children()[0]
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join()
        encode(TEXT)()


def test_a_process_that_is_killed_is_one_clear_error(saved):
    with pytest.raises(RunError, match="one of 2 processes that tokenize has ended") as caught:
        encode_after_a_kill(*saved)
    assert "run this again to go on where it stopped" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_text_takes_one_process_a_core(monkeypatch):
    monkeypatch.delenv(encoders.WORKERS, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert worker_count(10**9) == 4
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    assert worker_count(10**9) == encoders.MOST_WORKERS


def test_the_environment_says_how_many(monkeypatch):
    monkeypatch.setenv(encoders.WORKERS, "12")
    assert worker_count(10**9) == 12


def test_a_short_text_takes_no_other_process(monkeypatch):
    monkeypatch.setenv(encoders.WORKERS, "12")
    assert worker_count(1_000_000) == 1


@pytest.mark.parametrize("chosen", ["0", "-1", "two", "1.5", "²"])
def test_no_number_of_processes_is_refused(monkeypatch, chosen):
    monkeypatch.setenv(encoders.WORKERS, chosen)
    with pytest.raises(ConfigError, match=f"MLX_ATTN_WORKERS={chosen} must be a whole number"):
        worker_count(1)
