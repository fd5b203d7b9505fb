"""What was tokenized before is not tokenized again."""

import functools
from pathlib import Path

import numpy as np
import pytest

from mlx_attn.errors import RunError
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.token_store import Encode, TokenFile

TEXTS = ["one", " two", " three", " four"]


class Counting:
    """Encodes bytes, notes what, and may stop at a text."""

    def __init__(self, stop_at: str = ""):
        self.encoded: list[str] = []
        self.stop_at = stop_at
        self.encode = Encode(lambda text: functools.partial(self._promise, text), ahead=2)

    def _promise(self, text: str) -> np.ndarray:
        if text == self.stop_at:
            raise KeyboardInterrupt
        self.encoded.append(text)
        return ByteTokenizer().encode(text)


def write(folder: Path, texts: list[str], known=None, stop_at: str = "") -> list[str]:
    """Writes the file of these texts; what was encoded for it."""
    counting = Counting(stop_at)
    try:
        TokenFile(folder, "train").write(texts, counting.encode, known or {}, lambda n_bytes: None)
    except KeyboardInterrupt:
        return counting.encoded
    assert content(folder) == "".join(texts)
    return counting.encoded


def content(folder: Path) -> str:
    return ByteTokenizer().decode(np.fromfile(folder / "train.tokens.bin", np.uint16))


def test_tokens_are_appended_in_the_order_of_the_text(tmp_path):
    assert write(tmp_path, TEXTS) == TEXTS


def test_an_interrupted_writing_goes_on_after_the_last_chunk(tmp_path):
    assert write(tmp_path, TEXTS, stop_at=" three") == ["one", " two"]
    assert content(tmp_path) == "one two"
    assert write(tmp_path, TEXTS) == [" three", " four"]


def test_what_is_there_already_counts_as_progress(tmp_path):
    write(tmp_path, TEXTS, stop_at=" three")
    seen: list[int] = []
    TokenFile(tmp_path, "train").write(TEXTS, Counting().encode, {}, seen.append)
    assert seen == [3, 4, 6, 5]


def test_tokens_without_their_line_are_made_again(tmp_path):
    write(tmp_path, TEXTS)
    record = tmp_path / "train.chunks.jsonl"
    record.write_text(record.read_text()[:-20])
    assert write(tmp_path, TEXTS) == [" four"]


def test_a_line_without_its_tokens_is_not_believed(tmp_path):
    write(tmp_path, TEXTS)
    tokens = tmp_path / "train.tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-12])
    assert write(tmp_path, TEXTS) == [" three", " four"]


def test_after_a_change_in_the_text_all_is_made_again(tmp_path):
    write(tmp_path, TEXTS)
    assert write(tmp_path, ["one", " 2", " three"]) == [" 2", " three"]


@pytest.mark.parametrize("texts", [TEXTS[:2], []])
def test_a_shorter_text_leaves_nothing_behind(tmp_path, texts):
    write(tmp_path, TEXTS)
    assert write(tmp_path, texts) == []


@pytest.mark.parametrize("line", ["no json\n", "[1]\n", '{"digest": "x", "n_bytes": 1}\n'])
def test_a_damaged_record_is_no_record(tmp_path, line):
    write(tmp_path, TEXTS)
    (tmp_path / "train.chunks.jsonl").write_text(line)
    assert write(tmp_path, TEXTS) == TEXTS


def test_tokens_of_another_file_are_taken_over(tmp_path):
    write(tmp_path / "old", TEXTS)
    known = TokenFile(tmp_path / "old", "train").promises()
    assert write(tmp_path / "new", [" four", " five", "one"], known) == [" five"]


def test_a_folder_that_cannot_be_written_is_explained(tmp_path):
    (tmp_path / "train.tokens.bin").mkdir()
    with pytest.raises(RunError, match=r"train\.tokens\.bin: cannot be written"):
        write(tmp_path, TEXTS)
