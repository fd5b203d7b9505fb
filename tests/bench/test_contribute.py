"""The file of a machine's figures: what it holds, and what is refused."""

import os
import re
import subprocess
import sys
from pathlib import Path

import machines
import msgspec
import pytest

from mlx_attn.bench import contribution
from mlx_attn.bench.contribution import Contribution
from mlx_attn.errors import RunError
from mlx_attn.machine import facts
from mlx_attn.records import content_digest
from mlx_attn.verify.checks import CHECKS

SMALL = {"nano": {"context_length": 16, "emb_dim": 16, "vocab_size": 40, "batch_size": 2}}


@pytest.fixture(scope="module")
def made() -> Contribution:
    """A contribution of this machine by a small recipe."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_ATTN_DATA_DIR", "/home/somebody/data")
        patch.setenv("MLX_ENABLE_TF32", "0")
        patch.setattr(contribution, "_in_new_process", lambda device: 0.25)
        return contribution.measure(lambda text: None, SMALL, seconds=0, checks=CHECKS[:3])


@pytest.fixture
def file(made, tmp_path) -> Path:
    return contribution.write(made, tmp_path)


def test_what_is_written_is_read_again_and_every_preset_form_and_work_is_in_it(made, file):
    assert contribution.read(file) == made
    assert [(s.preset, s.variant, s.work) for s in made.speeds] == [
        *(("nano", "standard", "train"), ("nano", "merged", "train")),
        *(("nano", "standard", "decode"), ("nano", "merged", "decode")),
    ]


def test_nothing_in_it_names_the_host_the_user_or_a_folder(made, file):
    text = file.read_text()
    for word in (os.uname().nodename, str(Path.home()), str(Path.cwd())):
        assert word not in text
    assert made.environment["MLX_ATTN_DATA_DIR"] == "(hidden)"
    assert made.environment["MLX_ENABLE_TF32"] == "0"  # a number is public


def test_a_library_in_a_folder_is_named_without_the_folder(monkeypatch):
    known = {**facts.machine_facts(), "blas": "/home/ada/lib/libblis.so"}
    monkeypatch.setattr(facts, "machine_facts", lambda: known)
    assert contribution._machine()["blas"] == "libblis.so"


def test_a_device_that_fails_is_in_the_file_as_wrong(monkeypatch):
    def fails() -> float:
        raise RuntimeError("no kernel")

    monkeypatch.setattr("mlx_attn.verify.operations.product_error", fails)
    products = [check for check in CHECKS if check.name == "products"]
    assert contribution._verified("cpu", products).wrong == ("products",)


def test_the_name_has_chip_cores_and_memory(made):
    mac = msgspec.structs.replace(made, chip="Apple M3 Pro", gpu_cores=18, memory_bytes=36 * 2**30)
    assert mac.file_name == "apple-m3-pro-18gpu-36gb.json"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{", '{"host": "mine", ', "unknown field `host`"),
        ('"commit":', '"comit":', "(unknown|missing required) field `comm?it`"),
        ('"memory_bytes": ', '"memory_bytes": 1', "digest does not fit the content"),
        ('"tok_s": ', '"tok_s": -', r"Expected `float` > 0.0 - at `\$.speeds\[0\].tok_s`"),
    ],
)
def test_a_file_that_was_changed_is_refused(file, old, new, message):
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(RunError, match=message):
        contribution.read(file)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": 9}, "schema is 9"),
        ({"weights": "0123456789abcdef"}, "other code measured"),
        ({"environment": {"MLX_ATTN_DATA_DIR": "/Users/me/data"}}, "has .'MLX_ATTN_DATA_DIR'"),
        ({"environment": {"USER": "1"}}, "has .'USER'.: only numbers and switches of MLX"),
    ],
)
def test_what_cannot_be_right_is_refused(made, tmp_path, changes, problem):
    changed = msgspec.structs.replace(made, **changes)
    sealed = msgspec.structs.replace(changed, digest=content_digest(changed, "digest"))
    with pytest.raises(RunError, match=problem):
        contribution.read(contribution.write(sealed, tmp_path))


def test_the_first_step_is_timed_in_a_new_process():
    assert contribution._in_new_process("cpu") > 0


def test_a_clone_has_a_folder_for_it(made, tmp_path):
    (tmp_path / "benchmarks" / "machines").mkdir(parents=True)
    file = contribution.write(made, tmp_path)
    assert file == tmp_path / "benchmarks" / "machines" / made.file_name


# A Mac's facts, from the output of its programs.

MAC = {
    "sysctl": "6\n4\n",
    "system_profiler": '{"SPDisplaysDataType": [{"sppci_cores": "16"}]}',
    "pmset -g batt": "Now drawing from 'Battery Power'\n -InternalBattery-0\t80%; discharging\n",
    "pmset -g": "System-wide power settings:\n lowpowermode         1\n sleep\n",
}


def test_a_mac_has_two_kinds_of_cores_a_gpu_and_a_battery_unless_programs_lack(monkeypatch):
    def answered(command, **_):
        text = MAC.get(" ".join(command), MAC.get(command[0], ""))
        return subprocess.CompletedProcess(command, 0, text)

    def missing(*_, **__):
        raise FileNotFoundError

    asked = (facts.core_counts, facts.gpu_cores, facts.power_source)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", answered)
    assert [ask() for ask in asked] == [(6, 4), 16, "battery, low power mode"]
    monkeypatch.setattr(subprocess, "run", missing)
    assert [ask() for ask in asked] == [(0, 0), 0, ""]


@pytest.mark.parametrize(
    ("supplies", "power"),
    [
        ({"AC/online": "1"}, "mains"),
        ({"AC/online": "0", "BAT0/status": "Discharging"}, "battery"),
        ({}, ""),
    ],
)
def test_linux_lists_its_power_supplies(monkeypatch, tmp_path, supplies, power):
    for file, text in supplies.items():
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text + "\n")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(facts, "_SUPPLIES", tmp_path)
    assert facts.power_source() == power


# The files in the repository.

FILES = sorted(machines.FILES.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_of_the_repository_is_whole_has_its_name_and_passed_verify(file):
    read = contribution.read(file)
    assert read.file_name == file.name
    assert {(s.preset, s.variant, s.work) for s in read.speeds} == {
        (preset, variant, work)
        for preset in contribution.RECIPE
        for variant in contribution.VARIANTS
        for work in contribution.WORKS
    }
    assert {one.device for one in read.verified} == {speed.device for speed in read.speeds}
    assert all(one.right and not one.wrong for one in read.verified)
    assert not re.search(r"/(Users|home|root|private|Volumes)/", file.read_text())


def test_the_documentation_has_the_tables_of_the_files():
    contributed, text = machines.machines(), machines.PERFORMANCE.read_text(encoding="utf-8")
    assert machines.PAGE.read_text(encoding="utf-8") == machines.page(contributed)
    assert text == machines.with_table(text, machines.summary(contributed))
    assert machines.summary(contributed) in text
