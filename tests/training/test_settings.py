import pytest

from mlx_attn.attention.config import VARIANTS
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import PRESETS
from mlx_attn.training.config import RESUMABLE, resolve, settings_from, variant_name


def test_without_layers_there_is_the_default_preset():
    settings = resolve()
    assert settings.preset == "tiny"
    assert settings.training.steps == PRESETS["tiny"].training["steps"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_training_that_can_be_built(preset):
    settings = resolve({"preset": preset})
    settings.model_config(PRESETS[preset].vocab_size)
    for key, value in PRESETS[preset].training.items():
        assert getattr(settings.training, key) == value


def test_a_later_layer_wins_and_a_preset_lies_under_all_of_them():
    file, environment, flags = (
        {"lr": 0.1, "seed": 1, "clip": 1},
        {"lr": 0.2, "seed": 2, "emb_dim": 32},
        {"lr": 0.3, "preset": "macbook"},
    )
    settings = resolve(file, environment, flags)
    training = settings.training
    assert (training.lr, training.seed, training.clip) == (0.3, 2, 1.0)
    assert settings.model["emb_dim"] == 32
    assert settings.model["context_length"] == PRESETS["macbook"].model["context_length"]


@pytest.mark.parametrize("budget", [{"minutes": 2.0}, {"epochs": 1.0}, {"steps": 7}])
def test_a_budget_replaces_the_budgets_below_it(budget):
    training = resolve({"steps": 50, "epochs": 3.0}, budget).training
    bounds = {"steps": training.steps, "epochs": training.epochs, "minutes": training.minutes}
    assert {key: value for key, value in bounds.items() if value} == budget


def test_budgets_of_one_layer_stand_side_by_side():
    training = resolve({"steps": 50, "minutes": 1}).training
    assert (training.steps, training.minutes) == (50, 1.0)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_what_its_row_sets(name):
    settings, row = resolve({"variant": name}), VARIANTS[name].settings
    assert {key: settings.model[key] for key in row} == row
    assert settings.variant == name


def test_a_variant_replaces_the_windows_of_one_below_it_which_can_be_changed():
    below = {"variant": "local-global"}
    assert resolve(below, {"variant": "sliding-window"}).model["global_every"] == 0
    assert resolve(below, {"variant": "standard"}).variant == "standard"
    assert resolve({"window": 8}, {"variant": "standard"}).variant == "sliding-window"
    settings = resolve({**below, "window": 8})
    assert (settings.model["window"], settings.variant) == (8, "local-global")


def test_maps_beside_a_variant_replace_its_own_and_are_named_by_themselves():
    assert resolve({"variant": "merged", "output": "none"}).variant == "merged-no-out-proj"
    assert resolve({"output": "none"}, {"variant": "merged"}).variant == "merged"
    assert variant_name({"score": "no_key", "output": "merged"}) == "no_key+linear+merged"


def test_a_block_is_norm_activation_and_biases():
    model = resolve({"block": "book", "norm": "rmsnorm"}).model
    assert (model["norm"], model["activation"], model["bias"]) == ("rmsnorm", "gelu", True)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"steps": "many"}, "steps='many' must be a whole number"),
        ({"steps": 1.5}, "steps=1.5 must be a whole number"),
        ({"steps": True}, "steps=True must be a whole number"),
        ({"lr": "fast"}, "lr='fast' must be a finite number"),
        ({"tied_head": 1}, "tied_head=1 must be true or false"),
        ({"variant": 3}, "variant=3 must be a text"),
        ({"data": ["a"]}, "data=['a'] must be a text"),
    ],
)
def test_a_wrong_key_or_value_is_refused_in_one_line(layer, message):
    with pytest.raises(ConfigError) as error:
        resolve(layer)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_whole_number_is_fine_where_a_float_is_meant():
    lr = resolve({"lr": 1}).training.lr
    assert (lr, type(lr)) == (1.0, float)


@pytest.fixture
def record():
    """What config.json holds of a training of 10 steps."""
    settings = resolve({"preset": "nano", "variant": "merged", "steps": 10})
    return settings.record(settings.model_config(99), digest="abc")


def test_the_record_gives_the_same_settings_back(record):
    again = settings_from(record, {})
    assert again.record(again.model_config(99), digest="abc") == record


def test_a_longer_training_may_go_on_and_minutes_replace_its_steps(record):
    assert settings_from(record, {"steps": 20, "log_every": 5}).training.steps == 20
    training = settings_from(record, {"minutes": 1.0}).training
    assert (training.steps, training.minutes) == (0, 1.0)


def test_a_setting_may_be_repeated_but_not_changed(record):
    settings_from(record, {"variant": "merged", "n_layers": 2, "preset": "nano"})
    with pytest.raises(ConfigError, match=r"n_layers=3 cannot change .* it is 2; what can"):
        settings_from(record, {"n_layers": 3})
    with pytest.raises(ConfigError, match="score='separate' cannot change"):
        settings_from(record, {"variant": "standard"})


def test_all_that_may_change_is_a_setting():
    resolve({key: {"data": "x", "compile": "on", "metric": "x"}.get(key, 1) for key in RESUMABLE})


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [("training", "lr", "fast"), ("training", "speed", 3), ("model", "n_heads", None)],
)
def test_a_damaged_record_is_refused_by_name(record, table, key, value):
    record[table][key] = value
    with pytest.raises(ConfigError, match=f"config.json: .*{key}"):
        settings_from(record, {})
