import mlx.core as mx
import mlx.nn as nn

from mlx_attn.arrays import count_parameters, named_arrays


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 2), nn.Linear(2, 2, bias=False)]
        self.scale = mx.ones(4)


def test_a_module_is_its_parameters_by_path():
    assert {name: array.shape for name, array in named_arrays(Pair()).items()} == {
        "layers.0.weight": (2, 3),
        "layers.0.bias": (2,),
        "layers.1.weight": (2, 2),
        "scale": (4,),
    }


def test_only_what_is_trained_is_counted():
    pair = Pair()
    assert count_parameters(pair) == 6 + 2 + 4 + 4
    pair.layers[0].freeze()
    assert count_parameters(pair) == 4 + 4
