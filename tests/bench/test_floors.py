"""benchmarks/floors.py: the floor has the products that the model computes, and no others."""

import json
from collections import Counter
from typing import Any

import floors
import peers
import pytest
from click.testing import CliRunner

from mlx_attn.arrays import count_parameters
from mlx_attn.attention.config import VARIANTS
from mlx_attn.bench import speed
from mlx_attn.errors import ConfigError
from mlx_attn.machine.device import on_linux_cpu
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.gpt import GPT, model_cost
from mlx_attn.training.config import TrainConfig

B, T = 3, 16
FORMS = [name for name, variant in VARIANTS.items() if variant.group == "forms"]
SIZES = {"vocab_size": 40, "context_length": T, "emb_dim": 32, "n_heads": 2, "n_layers": 2}
RECIPE = TrainConfig(steps=1, batch_size=B, compile="off")


def config(variant: str) -> GPTConfig:
    return config_from({**SIZES, "bias": False, **VARIANTS[variant].maps})


@pytest.mark.parametrize("variant", FORMS)
def test_a_forward_pass_has_the_multiply_adds_that_variants_cost(variant):
    products: Counter[Any] = floors.products_of(config(variant), B)
    multiply_adds = sum(product.multiply_adds * n for product, n in products.items())
    assert multiply_adds == B * T * model_cost(config(variant)).multiply_adds


def test_what_is_not_counted_is_refused():
    with pytest.raises(ConfigError, match="the floor of output=exclusive is not counted"):
        floors.products_of(config("exclusive"), B)


@pytest.mark.skipif(not on_linux_cpu(), reason="fused attention hides its two products")
@pytest.mark.parametrize("variant", FORMS)
@pytest.mark.parametrize(("kind", "times"), [("forward", 1), ("train", 3)])
def test_the_graph_has_just_these_products(variant, kind, times):
    work = speed.WORKLOADS[kind](config(variant), RECIPE)
    products = floors.products_of(config(variant), B)
    assert speed.operations(*work.graph())["Matmul"] == times * products.total()


def test_shares_of_the_time_add_up_to_one(monkeypatch):
    monkeypatch.setattr(speed, "SHORTEST", 0.0)
    setups = {name: (config(name), RECIPE) for name in ("standard", "merged")}
    for *_, row in floors.measure(setups, ("train", "forward"), 0.0):
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert ("optimizer" in row["shares"]) == (row["work"] == "train")


def test_it_runs_as_a_command(monkeypatch):
    monkeypatch.setattr(speed, "SHORTEST", 0.0)
    flags = "--preset nano --variants standard --part forward --seconds 0 --json"
    made = CliRunner().invoke(floors.command, flags.split())
    assert made.exit_code == 0, made.output
    (row,) = json.loads(made.stdout)["measurements"]
    assert (row["name"], row["work"]) == ("standard", "forward")


def test_mlx_s_encoder_has_our_weights_but_for_the_biases_of_its_output():
    ours = config_from({**SIZES, **peers.ENCODER})
    # MLX's attention has one bias flag for all four maps, and ours has a bias in out_proj.
    assert count_parameters(GPT(ours)) - count_parameters(peers.EncoderModel(ours)) == 2 * 32


def test_a_peer_is_measured_beside_ours():
    found = peers.beside(peers.PEERS[0], (config("merged"), RECIPE), 0.0)
    assert found["peer"] == "mlx.nn.TransformerEncoder"
    assert min(found[key]["median"] for key in ("ours", "theirs", "faster")) > 0
