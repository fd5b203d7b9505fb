"""One setting chooses the device, one switch forces a path, and every choice follows them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext

import mlx.core as mx
import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.machine import blas, device, facts, graphs
from mlx_attn.machine.device import (
    code_path,
    forced_path,
    on_gpu,
    on_linux_cpu,
    use_device,
)
from mlx_attn.machine.operations import cross_entropy, gelu
from mlx_attn.machine.streams import compiled_step, cores, single_stream, split_among_cores

COMPUTES_ON_GPU = mx.default_device().type == mx.DeviceType.gpu


@pytest.fixture
def wish(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment whose wish is read anew, here and after the test."""
    device._wished.cache_clear()
    monkeypatch.delenv(device.SWITCH, raising=False)
    yield monkeypatch
    monkeypatch.undo()
    device._wished.cache_clear()


@pytest.mark.parametrize("path", ["gpu", "mac-cpu"])
def test_the_switch_takes_the_path_of_another_machine(wish, path):
    wish.setenv(device.SWITCH, path)
    assert code_path() == path
    assert on_gpu() == (path == "gpu")
    assert not on_linux_cpu()


def test_without_the_switch_the_device_decides_and_a_path_ends_with_its_block(wish):
    assert on_linux_cpu() == (sys.platform == "linux" and not COMPUTES_ON_GPU)
    with forced_path("gpu"):
        assert on_gpu()
    assert on_gpu() == COMPUTES_ON_GPU
    wish.setattr("sys.platform", "darwin")
    assert code_path() == ("gpu" if COMPUTES_ON_GPU else "mac-cpu")
    device._wished.cache_clear()
    wish.setenv(device.SWITCH, "metal")
    with pytest.raises(ConfigError, match="MLX_ATTN_CODE_PATH=metal must be gpu or mac-cpu"):
        on_gpu()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "no GPU on this machine: choose cpu"),
        ("tpu", r"unknown device 'tpu'.*choose cpu or gpu"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_what_to_do(chosen, monkeypatch, name, message):
    monkeypatch.setattr(device, "devices", lambda: ["cpu"] if name == "gpu" else ["cpu", "gpu"])
    with pytest.raises(ConfigError, match=message):
        use_device(name)
    assert chosen == []
    assert device.DEVICE not in os.environ


def test_every_process_computes_on_the_device_of_its_environment():
    environment = {**os.environ, device.DEVICE: "tpu"}
    command = [sys.executable, "-c", "import mlx_attn.machine.device"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "unknown device 'tpu' (--device, MLX_ATTN_DEVICE): choose cpu or gpu" in found.stderr


@pytest.mark.parametrize("path", ["gpu", "mac-cpu"])
def test_other_paths_take_mlx_s_own_operations_and_leave_a_batch_whole(path, monkeypatch):
    loss, activation, x = mx.zeros(2), mx.zeros((2, 5000)), mx.ones((2, 5000))
    monkeypatch.setattr(blas, "preload", lambda: blas.Blas(None, "", threads=5))
    monkeypatch.setattr(mx.fast, "cross_entropy", lambda logits, targets: loss)
    monkeypatch.setattr("mlx.nn.gelu_approx", lambda x: activation)
    with forced_path(path):
        assert (cores(), len(split_among_cores(x))) == (1, 1)
        assert cross_entropy(x, mx.array([1, 2])) is loss
        assert gelu(x) is activation
    with forced_path("linux-cpu"), single_stream():
        with single_stream():
            pass
        assert cores() == 1


@pytest.mark.parametrize(("rounds", "error"), [("float32", 3e-7), ("TF32", 3e-4)])
def test_a_run_records_how_its_device_rounds_products(monkeypatch, rounds, error):
    monkeypatch.setattr(facts, "device_name", lambda: f"one of {rounds}")
    monkeypatch.setattr(facts, "product_error", lambda: error)
    assert facts.versions()["products"] == rounds


@pytest.mark.parametrize(("rounds", "device_there"), [("float32", "gpu"), ("TF32", "cpu")])
def test_what_is_measured_exactly_leaves_a_gpu_that_has_begun_with_tf32(
    monkeypatch, rounds, device_there
):
    """MLX reads its switch with the first product of a process."""
    monkeypatch.setenv("MLX_ENABLE_TF32", "")
    monkeypatch.setattr(facts, "products", lambda: rounds)
    there = ["gpu"]
    monkeypatch.setattr(facts, "on_device", lambda name: nullcontext(there.append(name)))
    with facts.exact_products():
        assert there[-1] == device_there
        assert os.environ["MLX_ENABLE_TF32"] == ("1" if rounds == "TF32" else "0")


@pytest.mark.parametrize(
    ("path", "settings"),
    [("gpu", ["auto", "on"]), ("nvidia", ["on"]), ("mac-cpu", ["on"]), ("linux-cpu", [])],
)
def test_each_path_compiles_the_step_where_it_pays_or_is_asked_for(monkeypatch, path, settings):
    monkeypatch.setattr(graphs, "has_compiler", lambda: True)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: path != "gpu")
    with forced_path(path.replace("nvidia", "gpu")):
        assert device.on_nvidia() == (path == "nvidia")
        found = [s for s in ("auto", "on", "off") if compiled_step(print, s, []) is not print]
    assert found == settings
