"""The study's data: complete, consistent, and what its rows say of each other is so."""

import pytest

from mlx_attn.errors import ConfigError
from studies.study import study_from, the_study

STUDY = the_study()


@pytest.mark.parametrize("world", STUDY.worlds)
def test_a_world_leaves_nothing_that_matters_to_a_default(world):
    settings = STUDY.worlds[world].settings
    needed = {"context_length", "emb_dim", "n_heads", "n_layers", "position", "norm", "activation"}
    needed |= {"start", "optimizer", "lr", "schedule", "cooldown", "warmup", "batch_size", "steps"}
    assert needed <= set(settings)


@pytest.mark.parametrize("world", STUDY.worlds)
def test_positions_do_not_depend_on_the_number_of_heads(world):
    assert STUDY.worlds[world].settings.get("alibi_slopes", "range") == "range"


def test_a_verdict_uses_no_seed_of_tuning():
    protocol = STUDY.protocol
    assert not {*protocol.tuning_seeds} & {*protocol.verdict_seeds}


def test_keys_differ_by_seed_rate_world_and_arm(study):
    one = {"world": "near", "arm": "standard", "seed": 0, "scale": 1.0}
    changes = [{}, {"seed": 1}, {"scale": 2.0}, {"world": "far"}, {"arm": "no-key"}]
    assert len({study.trial(**(one | change)).key for change in changes}) == 5


def test_a_factor_multiplies_all_rates(study):
    settings = study.trial("near", "standard", 0, 0.5).settings
    assert settings["lr"] == 0.005


def test_an_arm_may_have_fewer_steps(study):
    assert study.trial("near", "shorter", 0, 1.0).settings["steps"] == 8


def test_a_jittered_start_is_another_training():
    run = {"world": "tales", "seed": 0, "scale": 1.0}
    assert STUDY.trial(arm="twin", **run).key != STUDY.trial(arm="standard", **run).key


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"arm": "no-kye"}, "did you mean 'no-key'"),
        ({"expects": ["wors"]}, "did you mean 'worse'"),
        ({"worlds": ["nearby"]}, "did you mean 'near'"),
        ({"expect": []}, "unknown field `expect`"),
        ({"expects": []}, "the contrast of no-key: it expects words, or repeats another"),
        ({"repeats": "no-query"}, "it expects words, or repeats another"),
    ],
)
def test_a_row_that_names_what_there_is_not_is_refused(tables, change, complaint):
    tables["questions"]["key"]["contrasts"][0] |= change
    with pytest.raises(ConfigError, match=complaint):
        study_from(tables)
