"""The judge shares nothing with what it judges, and has an opinion about everything."""

import ast
from pathlib import Path

import numpy as np
import pytest

from mlx_attn.attention.config import CHOICES
from mlx_attn.attention.references import REFERENCES
from mlx_attn.verify import models, reference
from mlx_attn.verify.reference import slope


def test_the_reference_imports_nothing_of_mlx():
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert "numpy" in modules
    assert not [name for name in modules if name and name.split(".")[0] == "mlx"]


def test_its_losses_are_those_recorded(monkeypatch):
    monkeypatch.setitem(models._SIZES, "context_length", 32)
    pairs = [models._pair(settings) for settings in models.GOLDEN.values()]
    recorded = [4.661941469018121, 4.9452309619137695, 4.823812071997574, 4.737998415966775]
    assert [gpt.loss(windows) for gpt, _, windows in pairs] == pytest.approx(recorded, abs=1e-9)


def test_a_slope_is_the_gradient_times_the_direction():
    x = np.array([1.0, -2.0, 3.0])
    expected = (3 * x**2 * reference.direction(x)).sum()
    assert slope(lambda x: float((x**3).sum()), x) == pytest.approx(expected, rel=1e-8)


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
