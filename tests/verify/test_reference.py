"""The judge is right by itself: its gradients are those of its values."""

import ast
from pathlib import Path

import numpy as np
import pytest

from mlx_attn.attention.config import CHOICES
from mlx_attn.attention.references import REFERENCES
from mlx_attn.verify import models, reference
from mlx_attn.verify.reference import Numbers

STEP = 1e-6


def slope(function, array: np.ndarray, direction: np.ndarray) -> float:
    """The derivative of a function of an array along a direction, by central differences."""
    return (function(array + STEP * direction) - function(array - STEP * direction)) / (2 * STEP)


def test_the_reference_imports_nothing_of_mlx():
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert "numpy" in modules
    assert not [name for name in modules if name and name.split(".")[0] == "mlx"]


@pytest.mark.parametrize("name", models.GOLDEN)
def test_the_gradients_of_a_model_are_the_slopes_of_its_loss(name):
    judge, _, windows = models._pair(models.GOLDEN[name][0])
    judge.loss_and_gradients(windows)
    numbers, gradients = Numbers(1), judge.gradients
    for weight, gradient in gradients.items():
        direction, weights = numbers(*gradient.shape), dict(judge.weights)

        def loss(changed: np.ndarray, weights=weights, weight=weight) -> float:
            gpt = reference.ReferenceGPT(judge.config, weights | {weight: changed})
            return gpt.loss_and_gradients(windows)

        found = slope(loss, weights[weight], direction)
        assert found == pytest.approx((gradient * direction).sum(), rel=1e-5, abs=1e-8), weight


def test_the_last_query_stands_at_the_last_key():
    assert reference.is_seen(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    assert reference.is_seen(2, 4, window=2).tolist() == [
        [False, True, True, False],
        [False, False, True, True],
    ]


def test_every_hook_of_the_package_has_a_reference():
    for name in ("logits", "mixing"):
        ours = {word for word, choice in CHOICES[name].items() if choice.is_built_in}
        assert ours - {"none", "softmax"} == set(REFERENCES[name])
