"""Records are kept line by line, and any change of one is found."""

import pytest

from mlx_attn.errors import RunError
from studies.book import RecordBook


@pytest.fixture
def kept(tmp_path, study, trained):
    """A folder with ten records."""
    book = RecordBook(tmp_path)
    first, *rest = trained(study, most=10).values()
    book.add(first)
    book.add(*rest)
    return tmp_path


def test_what_is_kept_is_read_back(kept, study, trained):
    assert RecordBook(kept).records == trained(study, most=10)


def test_records_lie_by_world_one_on_a_line(kept):
    assert [file.name for file in kept.iterdir()] == ["near.jsonl"]
    assert len((kept / "near.jsonl").read_text().splitlines()) == 10


def changed(folder, old, new):
    file = folder / "near.jsonl"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(("old", "new"), [('"loss":1', '"loss":2'), ('"seed":10', '"seed":13')])
def test_a_digit_changed_by_hand_is_found(kept, old, new):
    changed(kept, old, new)
    with pytest.raises(RunError, match=r"line 1: standard, .*changed after it was written"):
        RecordBook(kept)


def test_half_a_line_is_found(kept):
    file = kept / "near.jsonl"
    file.write_text(file.read_text()[:-30])
    with pytest.raises(RunError, match=r"line 10: .*not a record"):
        RecordBook(kept)


def test_bytes_that_are_no_text_are_refused(kept):
    (kept / "near.jsonl").write_bytes(b"\xbb" + (kept / "near.jsonl").read_bytes())
    with pytest.raises(RunError, match=r"near\.jsonl: cannot be read"):
        RecordBook(kept)


def test_half_a_character_written_by_hand_is_found(kept):
    changed(kept, '"world":"near"', '"world":"\\ud800"')
    with pytest.raises(RunError, match=r"line 1: standard, .*changed after it was written"):
        RecordBook(kept)


def test_a_record_that_is_there_twice_is_found(kept):
    file = kept / "near.jsonl"
    file.write_text(file.read_text() + file.read_text().splitlines()[0] + "\n")
    with pytest.raises(RunError, match="two records of"):
        RecordBook(kept)
