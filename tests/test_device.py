"""One switch takes the path of a GPU on any device, and every choice by device follows it."""

import sys
from collections.abc import Iterator

import mlx.core as mx
import pytest

from mlx_attn import blas, device
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.trial import Store
from mlx_attn.cpu import cores
from mlx_attn.device import gpu_path, on_gpu, on_linux_cpu
from mlx_attn.errors import ConfigError
from mlx_attn.exponentials import cross_entropy, gelu
from mlx_attn.training import step
from mlx_attn.training.config import TrainConfig

HAS_GPU = mx.default_device().type == mx.DeviceType.gpu


@pytest.fixture
def wish(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment whose wish is read anew, here and after the test."""
    device._wished.cache_clear()
    monkeypatch.delenv(device.SWITCH, raising=False)
    yield monkeypatch
    monkeypatch.undo()
    device._wished.cache_clear()


def test_without_the_switch_the_device_decides(wish):
    assert on_gpu() == HAS_GPU
    assert on_linux_cpu() == (sys.platform == "linux" and not HAS_GPU)


def test_the_switch_takes_a_gpu_s_path(wish):
    wish.setenv(device.SWITCH, "gpu")
    assert on_gpu()
    assert not on_linux_cpu()


def test_another_value_is_refused(wish):
    wish.setenv(device.SWITCH, "metal")
    with pytest.raises(ConfigError, match="MLX_ATTN_CODE_PATH=metal must be gpu"):
        on_gpu()


def test_a_path_ends_with_its_block(wish):
    with gpu_path():
        assert on_gpu()
    assert on_gpu() == HAS_GPU


def test_a_gpu_s_path_has_one_stream(gpu_path, monkeypatch):
    monkeypatch.setattr(blas, "preload", lambda: blas.Blas("a library", "", threads=5))
    assert cores() == 1


def test_a_gpu_s_path_compiles_the_step(gpu_path, monkeypatch):
    monkeypatch.setattr(mx, "compile", lambda function, **state: "compiled")
    assert step.compiled(lambda: None, TrainConfig(steps=1), []) == "compiled"
    assert step.compiled(lambda: None, TrainConfig(steps=1, compile="off"), []) != "compiled"


def test_a_gpu_s_path_takes_mlx_s_own_loss_and_activation(gpu_path, monkeypatch):
    monkeypatch.setattr(mx.fast, "cross_entropy", lambda logits, targets: "the loss")
    monkeypatch.setattr("mlx.nn.gelu_approx", lambda x: "the activation")
    x = mx.zeros((2, 5000))
    assert cross_entropy(x, mx.array([1, 2])) == "the loss"
    assert gelu(x) == "the activation"


def test_a_gpu_trains_one_trial_at_a_time(gpu_path, tmp_path):
    assert Runner(Store(tmp_path)).size == 1
