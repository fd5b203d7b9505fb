"""PyTorch's checkpoints without PyTorch: what is read, and what is refused before it could act."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_attn.errors import RunError
from mlx_attn.interop.torch_archive import read_checkpoint, write_checkpoint

STORAGE = b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"


def tensor(size: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> bytes:
    """A program whose result is {"w": that view of a storage of `size` numbers}."""

    def number(value: int) -> bytes:
        if abs(value) < 2**31:
            return b"J" + struct.pack("<i", value)
        return b"\x8a\x0a" + value.to_bytes(10, "little", signed=True)

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    view = b"ctorch._utils\n_rebuild_tensor_v2\n" + STORAGE + number(size)
    view += b"tQ" + number(offset) + numbers(shape) + numbers(strides)
    return b"\x80\x02}X\x01\x00\x00\x00w" + view + b"\x89}tRs."


@pytest.fixture
def archive(tmp_path) -> Callable[..., Path]:
    """Writes an archive with a program and one storage of four numbers."""

    def write(program: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
        path = tmp_path / "model.pth"
        with zipfile.ZipFile(path, "w", compression) as file:
            file.writestr("model/data.pkl", program)
            file.writestr("model/data/0", struct.pack("<4f", 1, 2, 3, 4))
        return path

    return write


def test_what_is_written_is_read_back_and_an_array_under_two_names_is_written_once(tmp_path):
    one, path = mx.random.normal((3, 1000)), tmp_path / "model.pth"
    arrays = {"a.weight": one, "head": one, "bias": mx.ones((4,)), "number": mx.array(2.0)}
    arrays["empty"] = mx.zeros((0, 3))
    write_checkpoint(path, arrays)
    assert path.stat().st_size < 2 * one.nbytes
    found = read_checkpoint(path)
    assert found.keys() == arrays.keys()
    assert all(mx.array_equal(found[name], array) for name, array in arrays.items())


def test_a_view_is_read_by_its_strides(archive):
    found = read_checkpoint(archive(tensor(4, (2, 2), (1, 2))))
    assert found["w"].tolist() == [[1, 3], [2, 4]]


HOSTILE = {
    "a command": b"\x80\x02cposix\nsystem\n(X\x12\x00\x00\x00touch was_executedtR.",
    "a command, by name on the stack": b"\x80\x04\x8c\x05posix\x8c\x06system\x93(tR.",
    "a builtin": b"\x80\x02c__builtin__\neval\n(X\x01\x00\x00\x001tR.",
    "an attribute of what is known": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
    "an object": b"\x80\x02(X\x01\x00\x00\x001iposix\nsystem\n.",
    "a new object": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    "the state of an object": b"\x80\x02ccollections\nOrderedDict\n}b.",
    "a tensor beyond its storage": tensor(4, (2, 3), (3, 1)),
    "a tensor that repeats its storage": tensor(4, (2**20, 2**20), (0, 0)),
    "a tensor before its storage": tensor(4, (2,), (-1,)),
    "a storage larger than its bytes": tensor(2**30, (2**30,), (1,)),
    "a step beyond all numbers": tensor(4, (1,), (2**70,)),
    "an empty stack": b"\x80\x020R.",
    "no end": b"\x80\x02}",
    "a key that is slow to hash": b"\x80\x02}K\x01\x85K\x01s.",
    "no state dict": b"\x80\x02K\x01.",
}


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_program_is_refused_and_nothing_runs(program, archive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="refused, nothing of it was executed") as told:
        read_checkpoint(archive(program))
    if b"cposix" in program:
        assert "posix.system, which no state dict needs: save" in str(told.value)
    assert not Path("was_executed").exists()


@pytest.mark.parametrize("what", ["compressed", "too long"])
def test_an_archive_that_would_unpack_to_more_than_its_size_is_refused(what, archive):
    if what == "compressed":
        path = archive(b"\x80\x02" + b"0" * 10_000_000, zipfile.ZIP_DEFLATED)
    else:
        path = archive(tensor(4, (4,), (1,)))
        data = path.read_bytes()
        place = data.rindex(b"PK\x01\x02")  # the directory's entry of the storage
        claimed = struct.pack("<II", 2**31, 2**31)
        path.write_bytes(data[: place + 20] + claimed + data[place + 28 :])
    with pytest.raises(RunError, match=r"is compressed|members claim [\d,]+ bytes"):
        read_checkpoint(path)


def test_a_file_of_an_earlier_pytorch_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "old.pth"
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    with pytest.raises(RunError, match="save it again"):
        read_checkpoint(path)
