import json

import pytest

from mlx_attn import __version__
from mlx_attn.arrays import count_parameters
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.attention.config import MAPS
from mlx_attn.model.config import PRESETS, GPTConfig
from mlx_attn.model.gpt import GPT


def variants(run_command, *arguments) -> dict:
    return json.loads(run_command("variants", "--json", *arguments).stdout)


def test_info_names_versions_device_and_blas(run_command):
    facts = json.loads(run_command("info", "--json").stdout)
    assert facts["mlx_attn"] == __version__
    assert facts["device"] in ("cpu", "gpu")
    assert facts["memory_bytes"] > 0
    assert {"mlx", "numpy", "python", "platform", "metal", "chip", "blas"} <= facts.keys()
    shown = dict(line.split("  ", 1) for line in run_command("info").stdout.splitlines())
    assert shown["mlx attn"].strip() == __version__


def test_parameters_are_those_of_the_model_that_would_be_trained_at_any_size(run_command):
    rows = variants(run_command, "--preset", "nano", "--n-layers", "3")["variants"]
    sizes = {"vocab_size": PRESETS["nano"].vocab_size, **PRESETS["nano"].model, "n_layers": 3}
    for row in rows:
        config = GPTConfig(**{**sizes, **VARIANTS[row["name"]].settings})
        assert row["cost"]["parameters"] == count_parameters(GPT(config)), row["name"]


def test_the_cache_is_counted_in_bytes_at_a_length(run_command):
    flags = ("--tokens=100", "--batch=3", "--dtype=bfloat16", "--window=10", "--global-every=2")
    rows = {row["name"]: row["cost"] for row in variants(run_command, *flags)["variants"]}
    layers = PRESETS["tiny"].model["n_layers"]
    held = layers / 2 * 10 + layers / 2 * 100  # half of the layers see all
    floats = rows["standard"]["cache_floats"] / layers
    assert rows["standard"]["cache_bytes"] == floats * held * 3 * 2
    assert rows["mla"]["cache_bytes"] < rows["standard"]["cache_bytes"]


@pytest.mark.parametrize("columns", [0, 120])
def test_every_row_keeps_its_name_and_its_numbers_at_any_width(run_command, monkeypatch, columns):
    """A terminal that says 0 has the usual width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run_command("variants").stdout.splitlines()
    assert all(len(line) <= (columns or 80) for line in lines)
    starts = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
    for name in VARIANTS:
        assert len(starts[name].split()) == 7, starts[name]


def test_choices_are_listed_by_their_flag(run_command):
    found = json.loads(run_command("variants", "--choices", "--json").stdout)["choices"]
    names = {(row["map"], row["name"]) for row in found}
    assert {("score", "separate"), ("value", "latent"), ("logits", "forget")} <= names
    lines = run_command("variants", "--choices").stdout.splitlines()
    assert [line for line in lines if line.startswith("--")] == [f"--{key}" for key in MAPS]
    assert "  sink          w_h = e^s_h / (e^b_h + sum e^s_h)" in lines
