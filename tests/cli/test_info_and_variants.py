import json

from mlx_attn import __version__
from mlx_attn.arrays import count_parameters
from mlx_attn.attention.catalog import MAPS, VARIANTS
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


def test_choices_are_listed_by_their_flag(run_command):
    found = json.loads(run_command("variants", "--choices", "--json").stdout)["choices"]
    names = {(row["map"], row["name"]) for row in found}
    assert {("score", "separate"), ("value", "latent"), ("logits", "forget")} <= names
    lines = run_command("variants", "--choices").stdout.splitlines()
    assert [line for line in lines if line.startswith("--")] == [f"--{key}" for key in MAPS]
    assert ["sink", "w_h", "=", "e^s_h", "/", "(e^b_h", "+", "sum", "e^s_h)"] in map(
        str.split, lines
    )
