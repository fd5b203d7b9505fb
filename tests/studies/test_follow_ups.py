"""The follow-up studies: complete, and consistent with the first."""

from dataclasses import replace

import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.model.config import PRESETS
from mlx_attn.model.gpt import model_cost
from mlx_attn.training.config import resolve
from mlx_attn_studies import FOLLOW_UPS
from mlx_attn_studies.follow_ups import follow_up
from mlx_attn_studies.study import the_study

STUDY = the_study()


def test_a_study_asked_besides_shares_the_trainings_that_are_the_same():
    besides = follow_up("widths")
    one = {"arm": "no-query", "seed": 100, "scale": 1.0}
    first = STUDY.trial(world="shakespeare", **one).key
    keys = [besides.trial(world=world, **one).key for world in besides.worlds]
    assert [key == first for key in keys] == [False, True, False]  # widths 32, 64, 128


@pytest.mark.parametrize("name", FOLLOW_UPS)
def test_every_arm_of_a_study_asked_besides_can_be_had_where_it_is_asked(name):
    besides = follow_up(name)
    for _, contrast, world in besides.asked():
        for arm in contrast.arms:
            resolve(besides.trial(world, arm, 0, 1.0).settings).model_config(32)


@pytest.mark.parametrize("arm", ["deep-one-head", "deep-four-heads"])
def test_the_deep_and_the_wide_model_have_as_many_parameters(arm):
    besides = follow_up("sources")
    trials = (besides.trial("shakespeare", a, 0, 1.0) for a in (arm, "standard"))
    deep, wide = (resolve(trial.settings).model_config(65) for trial in trials)
    assert model_cost(deep).parameters == pytest.approx(model_cost(wide).parameters, rel=0.002)


def test_delta_rules_are_compared_at_equal_parameters():
    study = follow_up("delta-rules")
    for _, contrast, world in study.asked():
        trials = (study.trial(world, arm, 0, 1.0) for arm in (contrast.arm, "standard"))
        arm, standard = (model_cost(resolve(t.settings).model_config(65)) for t in trials)
        assert arm.parameters == pytest.approx(standard.parameters, rel=0.0005)


def test_a_question_like_anothers_asks_its_contrasts_with_its_arms():
    earlier, longer = follow_up("alternatives"), follow_up("alternatives-longer")
    asked = {contrast.arm for _, contrast, _ in longer.asked()}
    assert asked == {contrast.arm for _, contrast, _ in earlier.asked()} | {"mla-learned"}
    assert all(longer.arms[arm] == earlier.arms[arm] for arm in asked - {"mla-learned"})


def test_a_study_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'widths'"):
        follow_up("width")


def settings_of(study):
    """All settings of all trainings that a study asks for, by world and arm."""
    asked = {(world, arm) for _, contrast, world in study.asked() for arm in contrast.arms}
    trials = {pair: study.trial(*pair, seed=0, scale=2.0) for pair in asked}
    settings = {pair: resolve(trial.settings) for pair, trial in trials.items()}
    return {pair: (one.training, one.model) for pair, one in settings.items()}


@pytest.mark.parametrize("name", ["", *FOLLOW_UPS])
def test_no_later_preset_changes_a_registered_training(name, monkeypatch):
    study = follow_up(name) if name else STUDY
    before, preset = settings_of(study), PRESETS["tiny"]
    training = dict(preset.training) | {
        "lr": 0.5,
        "muon_lr": 0.5,
        "muon_momentum": 0.5,
        "beta2": 0.5,
    }
    training |= {"steps": 7, "batch_size": 7, "warmup": 7, "optimizer": "sgd", "schedule": "cosine"}
    model = dict(preset.model) | {"n_layers": 7, "n_heads": 7, "emb_dim": 7, "context_length": 7}
    model |= {"norm": "layernorm", "activation": "gelu", "bias": True, "start": "gpt2"}
    changed = replace(preset, training=training, model=model | {"position": "none"})
    monkeypatch.setitem(PRESETS, "tiny", changed)
    assert settings_of(study) == before


def test_worlds_keep_the_momentum_that_they_were_registered_with():
    """It is no part of a key: 0.95 was the default then, and is what all records have."""
    trial = STUDY.trial("python", "standard", 100, 1.0)
    assert resolve(trial.settings).training.muon_momentum == 0.95
    assert "muon_momentum" in trial.unnamed
