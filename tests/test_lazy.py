import importlib

import pytest

from mlx_attn.lazy import lazily


@pytest.mark.parametrize("package", ["mlx_attn.attention", "mlx_attn.model"])
def test_every_public_name_of_a_package_can_be_had(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_a_name_is_that_of_its_module():
    from mlx_attn.attention import Attention
    from mlx_attn.attention import module as home

    assert Attention is home.Attention


def test_another_name_is_no_attribute():
    find = lazily("mlx_attn.attention", {"Attention": "module"})
    with pytest.raises(
        AttributeError, match=r"module 'mlx_attn\.attention' has no attribute 'Nope'"
    ):
        find("Nope")
