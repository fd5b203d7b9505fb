"""A corpus is prepared once and then found."""

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest

from mlx_attn.errors import RunError
from mlx_attn.files import lock
from mlx_attn.text import corpus as corpus_module
from mlx_attn.text import sources
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.text.tokenizers import KINDS, train_tokenizer

TEXT = "The café is open.\nThe other café is not open.\n\n" * 40 + "z" * 60
MERGES = "t h\nĠ th\nĠth e\nĊ Ċ\nĠ Ġ\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "story.txt"
    path.write_bytes(TEXT.encode())
    return str(path)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "merges").write_text(MERGES, encoding="utf-8")
    monkeypatch.setattr("mlx_attn.text.downloads.fetch", lambda *what: tmp_path / "merges")
    monkeypatch.setattr(sources, "TALES_BYTES", (10_000, 4_000))
    return tmp_path / "data"


def tell(data: Path, kind: str) -> Corpus:
    return prepare("tales", kind, 400, data)


def never(*arguments: object) -> None:
    raise AssertionError("built again")


@pytest.fixture(params=["char", "bpe", "gpt2"])
def tales(request: pytest.FixtureRequest, data: Path) -> Corpus:
    return tell(data, request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_the_text(kind, file, data):
    corpus = prepare(file, kind, 400, data)
    assert corpus.tokenizer.kind == kind
    assert b"zz" not in corpus.tokenizer.vocabulary  # learned from the training text alone
    texts = [corpus.tokenizer.decode(split.tokens) for split in (corpus.train, corpus.val)]
    assert "".join(texts) == TEXT
    assert len(texts[0]) == int(0.9 * len(TEXT))
    assert [split.n_bytes for split in (corpus.train, corpus.val)] == [
        len(text.encode()) for text in texts
    ]


def test_the_second_time_nothing_is_made_under_whichever_name(file, data, tmp_path, monkeypatch):
    first, told = prepare(file, "bpe", 400, data), tell(data, "char")
    monkeypatch.setattr(corpus_module, "_build", never)
    monkeypatch.setattr("mlx_attn.text.sources.generate_stories", never)
    assert prepare("tales", "char", directory=data).val.floor_nats == told.val.floor_nats
    (tmp_path / "copy.txt").write_bytes(TEXT.replace("\n", "\r\n").encode())
    for source in (file, str(tmp_path / "copy.txt")):
        again = prepare(source, "bpe", 400, data)
        assert again.name == source
        assert again.digest == first.digest == sources.read_source(source, data).digest
        assert (again.train.tokens == first.train.tokens).all()
        assert again.tokenizer.decode(again.val.tokens) == first.tokenizer.decode(first.val.tokens)
        assert len(again.notes) == (source != file)  # CRLF is read as LF


def test_two_that_prepare_a_text_at_once_wait_for_each_other(file, data):
    prepare(file, "byte", directory=data)
    (folder,) = (data / "prepared").iterdir()
    with ThreadPoolExecutor() as pool, lock(folder):
        second = pool.submit(prepare, file, "byte", directory=data)
        assert not wait([second], timeout=0.2).done
    assert second.result().tokenizer.kind == "byte"


def test_another_tokenizer_in_the_same_folder_or_size_makes_another_corpus(file, data, tmp_path):
    for kind in ("byte", "char"):
        train_tokenizer(kind, TEXT).save(tmp_path)
        assert prepare(file, str(tmp_path), directory=data).tokenizer.kind == kind
    sizes = {prepare("tales", "bpe", size, data).tokenizer.vocab_size for size in (320, 324)}
    assert sizes == {320, 324}


def test_whatever_file_is_missing_or_cut_short_the_corpus_is_made_again(data):
    expected = tell(data, "byte")
    (folder,) = (data / "prepared").iterdir()
    (folder / ".train.tokens.npy.0a1b2c3d.tmp").write_bytes(b"left by a killed preparation")
    for path in sorted(folder.glob("[!.]*")):
        whole = path.read_bytes()
        for content in (None, whole[:-2]):
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            again = tell(data, "byte")
            assert path.read_bytes() == whole, path.name
            assert np.array_equal(again.train.tokens, expected.train.tokens)
            assert again.train.floor_nats == expected.train.floor_nats
    assert not list(folder.glob(".*"))
    (folder / "val.tokens 2.npy").touch()  # as iCloud names the other version in a conflict
    assert np.array_equal(tell(data, "byte").val.tokens, expected.val.tokens)
    train_tokenizer("char", TEXT).save(folder)
    assert tell(data, "byte").tokenizer.kind == "byte"


def test_a_data_directory_that_cannot_be_made_names_the_setting_that_moves_it(file, data):
    with pytest.raises(RunError, match="another folder with MLX_ATTN_DATA_DIR"):
        prepare(file, "byte", directory=Path(file))


def test_a_token_needs_the_ability_of_its_first_byte_that_is_no_space(tales):
    told = sources.read_source("tales", Path()).splits()[1].stories
    assert told is not None
    assert tales.val.token_abilities is not None
    begins = tales.val.tokens[tales.val.document_starts]
    assert tales.tokenizer.decode(begins) == "\n" * told.text.count("\n")
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
