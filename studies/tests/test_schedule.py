"""Which runs a study still wants: searches that end inside, then the verdict, in order."""

import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from studies.findings import measure
from studies.schedule import ArmPlan, arm_plans, searches, wanted_trials
from studies.study import study_from


def test_first_comes_tuning_of_the_first_arm(study):
    run = wanted_trials(arm_plans(study, {}))[0]
    assert (run.world, run.arm, run.seed, run.lr_scale) == ("near", "standard", 10, 1.0)


def test_important_arms_of_all_worlds_come_before_the_rest(study):
    order = [(plan.world, plan.arm) for plan in arm_plans(study, {})]
    first = [("near", "standard"), ("near", "scores-off")]
    assert order[:4] == [*first, ("far", "standard"), ("far", "scores-off")]


def test_an_arm_that_is_the_same_as_another_is_not_trained(study):
    arms = {(plan.world, plan.arm) for plan in arm_plans(study, {})}
    assert ("near", "attention-off") not in arms
    assert ("far", "attention-off") in arms


def test_verdicts_are_not_trained_before_the_rate_is_settled(study):
    seeds = {run.seed for run in wanted_trials(arm_plans(study, {}))}
    assert seeds == {*study.protocol.tuning_seeds}


def test_the_best_factor_is_taken(study, trained):
    search = ArmPlan(study, trained(study), "near", "no-key").search
    assert (search.best, search.interior) == (1.0, True)


@pytest.mark.parametrize(("best", "tried"), [(4.0, 8.0), (0.25, 0.125)])
def test_a_search_goes_on_beyond_its_end(study, trained, best, tried):
    records = trained(study, loss=lambda run: abs(float(np.log2(run.lr_scale / best))) + 1)
    search = ArmPlan(study, records, "near", "standard").search
    assert (search.best, search.interior) == (best, True)
    assert tried in search.losses


def test_a_search_ends_where_its_extensions_do(study, trained):
    search = ArmPlan(
        study, trained(study, loss=lambda run: 1 / run.lr_scale), "near", "standard"
    ).search
    assert (search.best, search.interior, search.settled) == (8.0, False, True)


def test_a_search_is_refined_beside_its_best(tables, trained):
    tables["protocol"]["refine"] = [0.7071, 1.4142]
    study = study_from(tables)
    records = trained(study, loss=lambda run: abs(float(np.log2(run.lr_scale)) - 0.4) + 1)
    search = ArmPlan(study, records, "near", "standard").search
    assert sorted(search.losses) == [0.5, 0.7071, 1.0, 1.4142, 2.0]
    assert (search.best, search.interior) == (1.4142, True)


def test_nothing_is_refined_before_the_best_lies_inside(tables, trained):
    tables["protocol"]["refine"] = [0.7071, 1.4142]
    study = study_from(tables)
    records = trained(study, loss=lambda run: abs(float(np.log2(run.lr_scale)) - 2) + 1)
    search = ArmPlan(study, records, "near", "standard").search
    assert sorted(search.losses) == [0.5, 1.0, 2.0, 2.8284, 4.0, 5.6568, 8.0]


def test_the_rate_of_queries_and_keys_is_searched_for_with_the_best_factor(tables, trained):
    tables["protocol"]["query_key_factors"] = [1.0, 0.5, 2.0]
    study = study_from(tables)

    def loss(trial):
        ratio = trial.settings.get("query_key_lr", 1.0)
        return float(1 + abs(np.log2(trial.lr_scale)) + abs(np.log2(ratio / 2)))

    plan = ArmPlan(study, trained(study, loss=loss), "near", "no-key")
    assert (plan.search.best, plan.search.query_key_lr) == (1.0, 2.0)
    # A fourth factor, 4, shows that 2 lies inside.
    second = plan.search.query_key
    assert second is not None
    assert sorted(second.losses) == [0.5, 1.0, 2.0, 4.0]
    assert {trial.settings["query_key_lr"] for trial in plan.verdict_trials()} == {2.0}


def test_a_factor_with_which_a_training_diverged_is_not_the_best(study, trained):
    records = trained(study, loss=lambda run: None if run.lr_scale > 1 else 2 - run.lr_scale)
    search = ArmPlan(study, records, "near", "standard").search
    assert (search.best, search.interior) == (1.0, True)


def test_a_world_with_the_rates_of_another_is_not_tuned(tables, trained):
    """Near, the best factor is 2; far, it would be 1."""
    study = study_from({**tables, "rates_from": {"far": "near"}})
    records = trained(study, loss=lambda run: 3 - run.lr_scale * (run.world == "near"))
    far = [record for record in records.values() if record.world == "far"]
    assert {record.seed for record in far} == {*study.protocol.verdict_seeds}
    near, there = (ArmPlan(study, records, world, "standard") for world in ("near", "far"))
    assert there.search.best == near.search.best != 1
    assert {*searches(study, records)["standard"]} == {"near"}


def test_rates_come_from_a_world_that_there_is(tables):
    with pytest.raises(ConfigError, match="unknown world 'nearer'"):
        study_from({**tables, "rates_from": {"far": "nearer"}})


def test_an_arm_with_the_rates_of_another_is_not_tuned(study, trained):
    records = trained(study)
    seeds = {record.seed for record in records.values() if record.arm == "shorter"}
    assert seeds == {*study.protocol.verdict_seeds}


def test_a_reference_may_have_the_first_of_the_seeds_alone(tables, trained):
    tables["arms"]["scores-off"]["seeds"] = 3
    study = study_from(tables)
    records = trained(study)
    seeds = {record.seed for record in records.values() if record.arm == "scores-off"}
    assert seeds == {*study.protocol.tuning_seeds, *study.protocol.verdict_seeds[:3]}
    measured = measure(study, records, study.asked()[0][1], "far")
    assert measured
    assert measured.worth == pytest.approx(0.4, abs=0.01)
    assert len(measured.differences) == 8


def test_an_arm_that_is_judged_has_all_seeds(tables):
    tables["arms"]["no-query"]["seeds"] = 3
    with pytest.raises(ConfigError, match="only a reference may have fewer seeds"):
        study_from(tables)


def test_what_is_trained_is_not_wanted_again(study, trained):
    assert wanted_trials(arm_plans(study, trained(study))) == []


def test_an_interrupted_study_goes_on_to_the_same_records(study, trained):
    half, whole = trained(study, most=40), trained(study)
    assert half.items() <= whole.items()


def test_one_question_of_one_world_wants_its_own_arms_and_the_worth_of_tokens(study):
    plans = arm_plans(study, {}, ["far"], ["query"])
    assert {plan.world for plan in plans} == {"far"}
    assert {plan.arm for plan in plans} == {"standard", "scores-off", "no-query", "shorter"}


def test_a_training_that_two_arms_need_is_wanted_once(tables):
    tables["arms"]["no-key"] = tables["arms"]["no-query"]
    study = study_from(tables)
    keys = [run.key for run in wanted_trials(arm_plans(study, {}))]
    assert len(keys) == len(set(keys))


def test_a_registered_factor_of_an_arm_takes_the_place_of_a_search(tables):
    tables["protocol"]["tuning_seeds"] = []
    tables["worlds"]["near"]["factors"] = {"no-query": 0.25}
    runs = wanted_trials(arm_plans(study_from(tables), {}))
    factors = {(run.world, run.arm): run.lr_scale for run in runs}
    assert factors["near", "no-query"] == 0.25
    assert factors["far", "no-query"] == factors["near", "standard"] == 1.0
