import math

import pytest

from mlx_attn.attention.catalog import Variant, register
from mlx_attn.errors import ConfigError
from mlx_attn.machine import device, streams
from mlx_attn.model.config import PRESETS
from mlx_attn.training.config import TrainConfig, layer_from, resolve, settings_from, variant_name
from mlx_attn.training.trainer import Trainer


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_training_that_can_be_built(preset):
    assert resolve().preset == "tiny"
    settings = resolve({"preset": preset})
    settings.model_config(PRESETS[preset].vocab_size)
    for key, value in PRESETS[preset].training.items():
        assert getattr(settings.training, key) == value


def test_a_preset_lies_under_all_layers_also_under_those_below_the_one_that_names_it():
    settings = resolve({"emb_dim": 32, "clip": 2}, {"preset": "macbook"})
    # A whole number is fine where a float is meant.
    assert (settings.training.clip, type(settings.training.clip)) == (2.0, float)
    assert settings.model["emb_dim"] == 32
    assert settings.model["context_length"] == PRESETS["macbook"].model["context_length"]


@pytest.mark.parametrize("budget", [{"minutes": 2.0}, {"epochs": 1.0}, {"steps": 7, "minutes": 1}])
def test_a_budget_replaces_the_budgets_below_it(budget):
    training = resolve({"steps": 50, "epochs": 3.0}, budget).training
    bounds = {"steps": training.steps, "epochs": training.epochs, "minutes": training.minutes}
    assert {key: value for key, value in bounds.items() if value} == budget


def test_maps_beside_a_variant_replace_its_own_and_are_named_by_themselves():
    assert resolve({"variant": "merged", "output": "none"}).variant == "merged-no-out-proj"
    assert resolve({"output": "none"}, {"variant": "merged"}).variant == "merged"
    assert variant_name({"mixing": "gated_delta"}) == "separate+linear+linear+gated_delta"


def test_the_name_that_was_given_is_kept_in_the_record_and_by_who_starts_from_it(own_rows):
    register(Variant(name="twin", formula="q", summary="standard by another name"))
    settings = resolve({"variant": "twin"})
    record = settings.record(settings.model_config(99))
    names = [settings.variant, record["variant"], settings_from(record, {}).variant]
    assert [*names, resolve(layer_from(record), {"n_heads": 2}).variant] == ["twin"] * 4


def test_a_resume_may_change_a_budget_and_repeat_but_not_change_other_settings():
    settings = resolve({"preset": "nano", "variant": "merged", "steps": 10})
    record = settings.record(settings.model_config(99), digest="abc")
    assert settings_from(record, {"steps": 20, "log_every": 5, "data": "x"}).training.steps == 20
    training = settings_from(record, {"minutes": 1.0}).training
    assert (training.steps, training.minutes) == (0, 1.0)
    settings_from(record, {"variant": "merged", "n_layers": 2, "preset": "nano"})
    with pytest.raises(ConfigError, match=r"n_layers=3 cannot change .* it is 2; what can"):
        settings_from(record, {"n_layers": 3})
    with pytest.raises(ConfigError, match="score='separate' cannot change"):
        settings_from(record, {"variant": "standard"})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("steps", 0, "give steps, epochs or minutes"),
        ("log_every", 0, "log_every=0 must be at least 1"),
        ("lr", 0.0, "lr=0 trains nothing"),
        ("lr", math.nan, "lr=nan must be"),
        ("min_lr", 1.0, "min_lr=1.0 must be at most lr=0.001"),
        ("beta2", 1.0, "beta2=1.0 must be at most 0.9999"),
        ("steps", 10**30, "must be at most"),
        ("epochs", 1e308, "must be at most 1000000000"),
        ("schedule", "straight", "one of cosine, wsd, linear, constant"),
    ],
)
def test_what_cannot_work_is_refused_with_the_number(key, value, message):
    with pytest.raises(ConfigError) as error:
        TrainConfig(**{"steps": 10, "optimizer": "muon", key: value})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "changes", "compiler", "chosen"),
    [
        ("on_processor", {"steps": 10**9}, True, "on"),
        ("on_processor", {"steps": 0, "minutes": 1.0}, True, "on"),
        ("on_processor", {"steps": 10, "minutes": 9.0}, True, "auto"),
        ("on_processor", {"steps": 10**9}, False, "auto"),
        ("on_processor", {"steps": 10**9, "compile": "off"}, True, "off"),
        ("nvidia", {"steps": 10**9}, False, "on"),
        ("nvidia", {"steps": 0, "minutes": 6.0}, False, "on"),
        ("nvidia", {"steps": 10}, False, "auto"),
    ],
)
def test_a_long_run_is_compiled_where_that_is_slow_too(
    request, corpus, monkeypatch, path, changes, compiler, chosen
):
    request.getfixturevalue(path)
    monkeypatch.setattr(streams, "has_compiler", lambda: compiler)
    trainer = Trainer(resolve(changes), corpus, draw=False)
    trainer.choose_compiling()
    settings = trainer.settings
    is_slow = device.compiles_slowly()  # not so on the path of a Mac
    assert settings.training.compile == (chosen if is_slow else changes.get("compile", "auto"))
    record = settings.record(settings.model_config(corpus.tokenizer.vocab_size))
    assert settings_from(record, {"steps": 5}).training.compile == settings.training.compile
