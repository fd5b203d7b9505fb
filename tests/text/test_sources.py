"""Any text is read, or refused in one line; its chunks have the tokens of the whole."""

import hashlib
import io
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mlx_attn.errors import RunError
from mlx_attn.text import sources
from mlx_attn.text.downloads import CORPORA
from mlx_attn.text.sources import SplitText, chunked, read_source
from mlx_attn.text.subwords import GPT2Tokenizer
from mlx_attn.text.tokenizers import KINDS, train_tokenizer

LINES = "".join(f"line {number}\n" for number in range(100))
CRLF = LINES.replace("\n", "\r\n")


def text_of(split: SplitText) -> str:
    return "".join(split.chunks())


def whole(source: str, cache: Path) -> str:
    return "".join(map(text_of, read_source(source, cache).splits()))


def written(path: Path, content: bytes | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize(
    ("text", "cut"),
    [("é" * 99 + LINES, int(0.9 * (99 + len(LINES)))), ("ab" * (1_115_394 // 2), 1_003_854)],
    ids=["characters, not bytes", "nanoGPT's cut of tiny-shakespeare"],
)
def test_a_file_is_split_at_nine_tenths_of_its_characters(tmp_path, text, cut):
    train, val = read_source(written(tmp_path / "file.txt", text), tmp_path).splits()
    assert (text_of(train), text_of(val)) == (text[:cut], text[cut:])


def test_the_digest_is_that_of_the_content(tmp_path):
    first = read_source(written(tmp_path / "a.txt", LINES), tmp_path)
    again = read_source(written(tmp_path / "b.txt", LINES), tmp_path)
    other = read_source(written(tmp_path / "c.txt", LINES + "x"), tmp_path)
    assert first.digest == again.digest != other.digest
    assert first.digest == hashlib.blake2b(LINES.encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize(
    ("content", "text"),
    [("\ufeff" + LINES, LINES), (f"{CRLF}\r\r\n", f"{CRLF}\r\r\n")],
    ids=["a byte order mark is removed", "line endings are kept"],
)
def test_a_text_is_what_its_bytes_say(tmp_path, content, text):
    assert whole(written(tmp_path / "file.txt", content), tmp_path) == text


def test_a_folder_is_its_texts_by_path_with_blank_lines_between(tmp_path):
    written(tmp_path / "in" / "b.txt", "second file")
    written(tmp_path / "in" / "a.MD", "# the first file")
    written(tmp_path / "in" / "c" / "deep.txt", "the third")
    written(tmp_path / "in" / "d.py", "no text")
    written(tmp_path / "in" / "e.txt", "")
    assert whole(str(tmp_path / "in"), tmp_path) == "# the first file\n\nsecond file\n\nthe third"


def test_standard_input_is_read_as_utf8(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(("é" + LINES).encode()), "ascii"))
    assert whole("-", tmp_path) == "é" + LINES


def test_a_corpus_is_downloaded_by_name(tmp_path, monkeypatch):
    asked = []
    path = Path(written(tmp_path / "downloaded.txt", LINES))
    monkeypatch.setattr(sources.downloads, "fetch", lambda *what: asked.append(what) or path)
    progress = print
    source = read_source("enwik8", tmp_path, progress=progress)
    assert source.name == "enwik8"
    assert "".join(map(text_of, source.splits())) == LINES
    assert asked == [(CORPORA["enwik8"], tmp_path, progress)]


def test_the_tales_begin_with_a_newline_and_know_their_stories(tmp_path):
    splits = read_source("tales", tmp_path, n_bytes=5_000, val_bytes=1_000).splits()
    for split, size in zip(splits, (5_000, 1_000), strict=True):
        assert split.stories is not None
        assert text_of(split) == "\n" + split.stories.text
        assert size <= len(split.stories.text) < size + 5_000
    train, val = map(text_of, splits)
    assert train[:500] != val[:500]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the text is empty"),
        (b"too short", "9 characters are too few; give at least 20"),
        (b"a" * 1000, "every character is 'a'"),
        (b"text and\0 more" * 9, "not a text, byte 8 is NUL"),
        (LINES.encode() + b"caf\xe9 noir", r"not UTF-8, byte 793 is 0xe9 \(invalid"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line_that_names_the_file(tmp_path, content, message):
    path = written(tmp_path / "file.txt", content)
    with pytest.raises(RunError, match=message) as caught:
        read_source(path, tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_the_bad_file_of_a_folder_is_named_and_a_folder_without_texts_refused(tmp_path):
    written(tmp_path / "in" / "code.py", "print()")
    with pytest.raises(RunError, match=r"no \.txt or \.md file"):
        read_source(str(tmp_path / "in"), tmp_path)
    written(tmp_path / "in" / "good.txt", LINES)
    bad = written(tmp_path / "in" / "bad.txt", b"\xff" * 50)
    with pytest.raises(RunError, match="byte 0 is 0xff") as caught:
        read_source(str(tmp_path / "in"), tmp_path)
    assert str(caught.value).startswith(f"{bad}: ")


def test_a_link_out_of_a_folder_is_refused_and_one_within_is_followed(tmp_path):
    text = written(tmp_path / "in" / "deep" / "a.txt", LINES)
    (tmp_path / "in" / "b.txt").symlink_to(text)
    read_source(str(tmp_path / "in"), tmp_path)
    secret = written(tmp_path / "secret.txt", LINES)
    (tmp_path / "in" / "c.txt").symlink_to(secret)
    with pytest.raises(RunError, match=r"c\.txt: a link out of .*in, to .*secret\.txt: put a copy"):
        read_source(str(tmp_path / "in"), tmp_path)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("tiny-shakespear", "did you mean tiny-shakespeare?"),
        ("TinyStories", "did you mean tinystories?"),
        ("novel.txt", "a corpus is one of tales, tiny-shakespeare, the-verdict"),
    ],
)
def test_a_missing_file_gets_the_nearest_name(tmp_path, monkeypatch, source, hint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=f"{source}: no such file, folder or corpus; ") as caught:
        read_source(source, tmp_path)
    assert hint in str(caught.value)


def test_a_named_pipe_is_read_once_and_kept(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(LINES,))
    writer.start()
    assert whole(str(pipe), tmp_path) == LINES
    writer.join()


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "file.txt"
    source = read_source(written(path, LINES), tmp_path)
    path.write_text(LINES.replace("7", "8"))
    with pytest.raises(RunError, match=r"file\.txt: the text changed while it was read"):
        text_of(source.splits()[0])


@pytest.mark.parametrize("block", [1, 3])
def test_blocks_may_end_within_a_character(tmp_path, monkeypatch, block):
    monkeypatch.setattr("mlx_attn.text.sources._BLOCK", block)
    text = "\ufefféa語\U0001f600" * 9
    assert whole(written(tmp_path / "file.txt", text), tmp_path) == text[1:]
    with pytest.raises(RunError, match=r"byte 4 is 0xf0 \(unexpected end of data\)"):
        read_source(written(tmp_path / "cut.txt", "a語".encode() + b"\xf0\x9f"), tmp_path)


SIZE = 60  # characters of a chunk here
LETTERS = "ab é'1.<|endoftext|>\n\n\r\t\u2581\u3000 the cafe語 "
MERGES = "t h\nĠ th\nĠth e\nĊ Ċ\nĠ Ġ\n"

texts = st.lists(st.sampled_from([*LETTERS, " the", "<|endoftext|>", "\n\n"]), max_size=400)
long_texts = st.builds("".join, texts)


@pytest.fixture(scope="module")
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK", SIZE)
        yield


@pytest.fixture(scope="module")
def tokenizers():
    made = {kind: train_tokenizer(kind, LETTERS * 9, 330) for kind in KINDS if kind != "gpt2"}
    return {**made, "gpt2": GPT2Tokenizer(MERGES)}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(text=long_texts)
def test_the_tokens_of_the_chunks_are_those_of_the_text(tokenizers, kind, text):
    parts = list(chunked([text]))
    # A chunk without an edge is cut where it is full, in the middle of a word.
    assume(all(not part[-1].isspace() and len(part) < SIZE for part in parts[:-1]))
    tokens = [token for part in parts for token in tokenizers[kind].encode(part).tolist()]
    assert tokens == tokenizers[kind].encode(text).tolist()


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=100)
@given(long_texts, st.integers(1, 50))
def test_chunks_are_the_text_whatever_its_blocks(text, block):
    parts = list(chunked(text[i : i + block] for i in range(0, len(text), block)))
    assert "".join(parts) == text
    assert parts == list(chunked([text]))
    assert all(0 < len(part) <= SIZE for part in parts)
