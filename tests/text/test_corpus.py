"""A corpus is prepared once and then found."""

import math
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text import corpus as corpus_module
from mlx_attn.text import sources
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.corpus import Corpus, encoder, prepare, worker_count
from mlx_attn.text.stories.grammar import ABILITIES
from mlx_attn.text.subwords import GPT2Tokenizer
from mlx_attn.text.tokenizers import KINDS, Tokenizer, train_tokenizer

TEXT = "The café is open.\nThe other café is not open.\r\n\n" * 40
MERGES = "t h\nĠ th\nĠth e\n"
SIZES = (10_000, 4_000)  # bytes of tales for training and validation


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "story.txt"
    path.write_bytes(TEXT.encode())
    return str(path)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(GPT2Tokenizer, "published", lambda directory: GPT2Tokenizer(MERGES))
    return tmp_path / "data"


def tell(data: Path, kind: str) -> Corpus:
    return prepare("tales", kind, 400, data, *SIZES)


def never(*arguments: object) -> None:
    raise AssertionError("built again")


@pytest.fixture(params=["char", "bpe", "gpt2"])
def tales(request: pytest.FixtureRequest, data: Path) -> Corpus:
    return tell(data, request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_the_text(kind, file, data, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 100)
    corpus = prepare(file, kind, 400, data)
    assert corpus.tokenizer.kind == kind
    texts = [corpus.tokenizer.decode(split.tokens) for split in (corpus.train, corpus.val)]
    assert "".join(texts) == TEXT
    assert len(texts[0]) == int(0.9 * len(TEXT))
    assert [split.n_bytes for split in (corpus.train, corpus.val)] == [
        len(text.encode()) for text in texts
    ]


def test_subwords_are_trained_on_the_training_text_alone(tmp_path, data):
    path = tmp_path / "file.txt"
    path.write_text("the cat sat on the mat " * 90 + "zebra " * 20, encoding="utf-8")
    tokenizer = prepare(str(path), "bpe", 400, data).tokenizer
    assert len(tokenizer.encode(" cat")) == 1
    assert len(tokenizer.encode(" zebra")) == 6


def test_the_second_time_nothing_is_made_under_whichever_name(file, data, tmp_path, monkeypatch):
    first, told = prepare(file, "bpe", 400, data), tell(data, "char")
    monkeypatch.setattr(corpus_module, "_build", never)
    monkeypatch.setattr("mlx_attn.text.stories.dataset.generate_stories", never)
    assert tell(data, "char").val.floor_nats == told.val.floor_nats
    (tmp_path / "copy.txt").write_bytes(TEXT.encode())
    for source in (file, str(tmp_path / "copy.txt")):
        again = prepare(source, "bpe", 400, data)
        assert again.name == source
        assert again.digest == first.digest
        assert (again.train.tokens == first.train.tokens).all()
        assert again.tokenizer.decode(again.val.tokens) == first.tokenizer.decode(first.val.tokens)


def test_text_tokenizer_and_vocabulary_each_have_their_own_folder(file, data, tmp_path):
    (tmp_path / "other.txt").write_text(TEXT + "!")
    for source, kind, size in (
        (file, "byte", 400),
        (file, "char", 400),
        (file, "char", 500),  # the size is nothing to characters
        (file, "bpe", 400),
        (file, "bpe", 330),
        (str(tmp_path / "other.txt"), "byte", 400),
    ):
        prepare(source, kind, size, data)
    assert len(list((data / "prepared").iterdir())) == 5


def test_an_interrupted_preparation_is_no_corpus_and_is_replaced(file, data, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 100)
    encoded: list[str] = []
    encode = ByteTokenizer.encode

    def stop(self: ByteTokenizer, text: str) -> np.ndarray:
        encoded.append(text)
        if len(encoded) == 5:
            raise KeyboardInterrupt
        return encode(self, text)

    monkeypatch.setattr(ByteTokenizer, "encode", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(file, "byte", directory=data)
    (folder,) = (data / "prepared").iterdir()
    assert [path.name for path in folder.iterdir()] == ["tokenizer.json"]
    (folder / ".train.tokens.bin.0a1b2c3d.tmp").write_bytes(
        b"left by a preparation that was killed"
    )
    corpus = prepare(file, "byte", directory=data)
    whole = [*corpus.train.tokens.tolist(), *corpus.val.tokens.tolist()]
    assert whole == list(TEXT.encode())
    assert not list(folder.glob(".*"))


def prepared_files(data: Path) -> list[Path]:
    (folder,) = (data / "prepared").iterdir()
    return sorted(folder.iterdir())


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "missing"])
def test_a_truncated_or_missing_file_is_made_again(data, cut):
    tokens = tell(data, "bpe").train.tokens.tolist()
    for path in prepared_files(data):
        path.write_bytes(path.read_bytes()[:-2]) if cut else path.unlink()
        assert tell(data, "bpe").train.tokens.tolist() == tokens, path.name


def test_the_tales_and_each_of_their_documents_start_with_a_newline(tales):
    text = tales.tokenizer.decode(tales.val.tokens)
    assert text[0] == text[-1] == "\n"
    assert len(text.encode()) == tales.val.n_bytes
    assert 4_001 <= tales.val.n_bytes < 8_000
    for split in (tales.train, tales.val):
        (newline,) = tales.tokenizer.encode("\n")
        newlines = np.flatnonzero(split.tokens == newline)
        assert split.document_starts is not None
        assert split.document_starts.tolist() == newlines[:-1].tolist()


def test_a_token_needs_the_ability_of_its_first_byte_that_is_no_space(tales):
    told = sources.read_source("tales", Path(), *SIZES).splits()[1].stories
    assert told is not None
    assert tales.val.token_abilities is not None
    offset = 0
    stream = b"\n" + told.text.encode()
    for token, ability in zip(tales.val.tokens, tales.val.token_abilities, strict=True):
        piece = tales.tokenizer.token_bytes(token)
        assert stream[offset : offset + len(piece)] == piece
        if offset:
            first = offset + (len(piece) - len(piece.lstrip(b" ")) if piece.strip(b" ") else 0)
            assert ability == told.abilities[first - 1]
        offset += len(piece)
    assert offset == len(stream)


def test_the_floor_is_the_generator_s_and_the_sum_over_abilities(tales):
    told = sources.read_source("tales", Path(), *SIZES).splits()[0].stories
    assert told is not None
    floor = tales.train.floor_nats
    by_ability = tales.train.ability_floor_nats
    assert floor == -told.log_probability > 0
    assert by_ability is not None
    assert list(by_ability) == list(ABILITIES)
    assert math.isclose(sum(by_ability.values()), floor)


@pytest.fixture
def saved(tmp_path):
    tokenizer = train_tokenizer("bpe", TEXT, 330)
    tokenizer.save(tmp_path)
    return tokenizer, tmp_path


def test_other_processes_make_the_same_tokens(saved):
    tokenizer, _ = saved
    texts = [TEXT[start:] for start in range(12)]
    with encoder(*saved, workers=2) as encode:
        made = list(encode(texts))
    assert [n_bytes for n_bytes, _ in made] == [len(text.encode()) for text in texts]
    for (_, tokens), text in zip(made, texts, strict=True):
        assert tokens.tolist() == tokenizer.encode(text).tolist()


def encode_after_a_kill(tokenizer: Tokenizer, folder: Path) -> None:
    with encoder(tokenizer, folder, workers=2) as encode:
        list(encode([TEXT]))
        worker = multiprocessing.active_children()[0]
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join()
        list(encode([TEXT]))


def test_a_process_that_is_killed_is_one_clear_error(saved):
    with pytest.raises(RunError, match="one of 2 processes that tokenize was killed") as caught:
        encode_after_a_kill(*saved)
    assert "run this again, with MLX_ATTN_WORKERS=1" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "n_cores", "n_bytes", "count"),
    [(None, 4, 10**9, 4), (None, 96, 10**9, 8), ("12", 4, 10**9, 12), ("12", 4, 10**6, 1)],
    ids=["one a core", "not more than pay", "as the environment says", "a short text: this one"],
)
def test_a_text_takes_processes_as_it_is_long(monkeypatch, chosen, n_cores, n_bytes, count):
    monkeypatch.delenv(corpus_module.WORKERS, raising=False)
    if chosen:
        monkeypatch.setenv(corpus_module.WORKERS, chosen)
    monkeypatch.setattr(os, "cpu_count", lambda: n_cores)
    assert worker_count(n_bytes) == count
    monkeypatch.setenv(corpus_module.WORKERS, "1.5")
    with pytest.raises(ConfigError, match=r"MLX_ATTN_WORKERS=1\.5 must be a whole number"):
        worker_count(n_bytes)


@pytest.mark.parametrize("content", [b"\xff", b"\x01"])
def test_prepared_tokens_that_are_not_those_written_are_made_again(file, data, content):
    expected = prepare(file, "byte", directory=data).train.tokens.tolist()
    (tokens,) = (data / "prepared").glob("*/train.tokens.bin")
    tokens.write_bytes(content * tokens.stat().st_size)
    assert prepare(file, "byte", directory=data).train.tokens.tolist() == expected


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("corpus.json", '"document_starts"', '"document_stars"'),
        ("corpus.json", '"floor_nats": ', '"floor_nats": 1'),
        ("tokenizer.json", "abcd", "abdc"),
    ],
)
def test_a_changed_record_or_tokenizer_is_made_again(data, name, old, new):
    expected = tell(data, "char").train
    (changed,) = (data / "prepared").glob(f"*/{name}")
    text = changed.read_text()
    assert old in text
    changed.write_text(text.replace(old, new))
    again = tell(data, "char").train
    assert np.array_equal(np.array(again.document_starts), np.array(expected.document_starts))
    assert again.floor_nats == expected.floor_nats
    assert changed.read_text() == text
