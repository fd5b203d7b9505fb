"""From records to words, on records whose answers are known."""

from math import log

import msgspec
import pytest

from mlx_attn.errors import ConfigError, RunError
from studies import findings as answers
from studies import show
from studies.book import SOLVED, CurvePoint
from studies.decisions import Case, judge_all
from studies.findings import by_ability, findings
from studies.study import study_from


@pytest.fixture
def found(study, trained):
    """What a study finds, by arm and world; arguments as of `trained`."""

    def find(**formula):
        records = trained(study, **formula)
        return {(f.contrast.arm, f.world): f for f in findings(study, records)}

    return find


def test_no_difference_is_equivalent_and_the_claim_holds(found):
    one = found()["no-query", "near"]
    assert (one.word, one.answer) == ("equivalent", answers.HOLDS)


def test_a_large_one_is_worse_and_it_does_not(found):
    one = found(effects={"no-query": 0.1})["no-query", "far"]
    assert (one.word, one.answer) == ("worse", answers.FAILS)
    assert one.verdict.share == pytest.approx(0.25, abs=0.02)


def test_a_small_but_certain_one_is_within_the_margin_and_counts_as_equivalent(found):
    one = found(effects={"no-query": 0.01}, noise=0.0005)["no-query", "near"]
    assert (one.word, one.answer) == ("worse within the margin", answers.HOLDS)


def test_much_noise_leaves_it_undecided(found):
    assert found(noise=0.1)["no-query", "near"].answer == answers.UNDECIDED


def test_a_part_worth_little_makes_every_word_insensitive(study, trained):
    records = trained(study, loss=lambda run: 1 + run.seed % 3 * 1e-3 + abs(run.lr_scale - 1))
    assert {f.answer for f in findings(study, records)} == {answers.INSENSITIVE}


def test_false_discovery_rates_count_all_contrasts_of_the_study(study, trained):
    """Of four contrasts the two in one world are finished; those of the other count as p = 1."""
    effects = {"no-query": 0.1, "no-key": 0.1}
    records = trained(study, effects=effects, worlds=["near"])
    rows = {(f.contrast.arm, f.world): f for f in findings(study, records)}
    finished = [rows[arm, "near"] for arm in effects]
    largest = max(f.verdict.p_value for f in finished if f.verdict)
    assert {f.q for f in finished} == {largest * 4 / 2}
    assert {rows[arm, "far"].q for arm in effects} == {1.0}
    assert f" {largest * 2:.2g} |" in show.contrast_table(finished)


def test_nothing_is_judged_before_all_its_runs_are_there(study, trained):
    records = dict(trained(study))
    last = next(
        key for key, r in records.items() if (r.world, r.arm, r.seed) == ("near", "no-key", 7)
    )
    del records[last]
    found = {(f.contrast.arm, f.world): f.answer for f in findings(study, records)}
    assert found["no-key", "near"] == answers.UNFINISHED
    assert found["no-query", "near"] == answers.HOLDS


def test_progress_counts_the_runs_of_all_three_arms(study, trained):
    done = [f.done for f in findings(study, trained(study))]
    assert all(d == total == 3 * (3 * 3 + 8) for d, total in done)


def test_a_verdict_s_training_that_diverged_decides_nothing(study, trained):
    def loss(run):
        failed = run.arm == "no-query" and run.seed == 3
        return None if failed else 1 + abs(run.lr_scale - 1) + 0.4 * (run.arm == "scores-off")

    found = [f for f in findings(study, trained(study, loss=loss)) if f.contrast.arm == "no-query"]
    assert {f.answer for f in found} == {answers.DIVERGED}


@pytest.fixture
def repeated(tables):
    """A study whose first contrast is trained twice."""
    again = tables["arms"]["no-query"] | {"rates_of": "no-query", "jitter": True}
    tables["arms"]["again"] = again
    asked = tables["questions"]["query"]["contrasts"]
    asked.append({**asked[0], "arm": "again", "expects": [], "repeats": "no-query"})
    return study_from(tables)


@pytest.mark.parametrize(("effect", "answer"), [(0.0, answers.HOLDS), (0.1, answers.FAILS)])
def test_a_repetition_expects_the_word_of_the_first(repeated, trained, effect, answer):
    records = trained(repeated, effects={"again": effect})
    again = [f for f in findings(repeated, records) if f.contrast.arm == "again"]
    assert {f.answer for f in again} == {answer}


def test_a_repetition_owes_as_much_to_the_choice_of_rates(repeated, trained):
    found = {f.contrast.arm: f for f in findings(repeated, trained(repeated)) if f.world == "far"}
    verdicts = (found[arm].verdict for arm in ("again", "no-query"))
    of_choice = [verdict.tuning_error if verdict else 0.0 for verdict in verdicts]
    assert of_choice[0] == of_choice[1] > 0


@pytest.fixture
def with_twin(tables):
    """The study with a contrast of the standard form against itself from a jittered start."""
    twin = {"settings": {}, "says": "again", "rates_of": "standard", "jitter": True}
    tables["arms"]["twin"] = twin
    (contrast,) = tables["questions"]["query"]["contrasts"]
    tables["questions"]["query"]["contrasts"] += [{**contrast, "arm": "twin", "null": True}]
    return study_from(tables)


@pytest.mark.parametrize(("rounding", "word"), [(0.0, "worse"), (0.05, "undecided")])
def test_a_word_that_a_rounding_could_turn_does_not_stand(with_twin, trained, rounding, word):
    effects = {"no-query": 0.05, "twin": rounding}
    found = findings(with_twin, trained(with_twin, effects=effects, noise=0.0005))
    assert {f.word for f in found if f.contrast.arm == "no-query"} == {word}


def test_the_rounding_floor_is_the_largest_change_of_any_seed(with_twin, trained):
    def loss(run):
        return 1 + (0.003 * run.seed if run.arm == "twin" else 0.0) + abs(run.lr_scale - 1)

    records = trained(with_twin, loss=loss)
    assert answers.rounding_floor(with_twin, records, "near") == pytest.approx(0.003 * 7)
    assert answers.rounding_floor(with_twin, {}, "near") == 0.0


def test_the_correction_is_over_the_whole_page(study, trained):
    records = trained(study, effects={"no-query": 0.1})
    one = next(f for f in findings(study, records) if f.contrast.arm == "no-query")
    verdict = one.verdict
    assert verdict
    case = Case(differences=verdict.differences, margin=0.03, tuning=verdict.tuning_error)
    alone = judge_all({"arm": case})
    assert verdict.p_holm > alone["arm"].p_holm


def test_finishing_other_contrasts_withdraws_no_word(study, trained):
    whole = trained(study, effects={"no-query": 0.02}, noise=0.004)
    part = {key: record for key, record in whole.items() if record.arm != "no-key"}
    before, after = (
        next(f for f in findings(study, records) if f.contrast.arm == "no-query")
        for records in (part, whole)
    )
    assert before.verdict
    assert after.verdict
    assert after.verdict.p_holm <= before.verdict.p_holm
    assert after.verdict.p_equivalence <= before.verdict.p_equivalence


def test_a_difference_is_worth_tokens_of_the_control(study, trained, found):
    slope = 0.05 / log(1.25)
    assert answers.token_worth(study, trained(study, noise=0), "near") == pytest.approx(slope)
    one = found(effects={"no-query": 0.05}, noise=1e-6)["no-query", "near"]
    assert one.tokens == pytest.approx(0.2, abs=1e-3)


def test_what_tokens_are_worth_is_not_known_before_it_is_measured(study, trained):
    records = {k: r for k, r in trained(study).items() if r.arm != "shorter"}
    assert answers.token_worth(study, records, "near") is None


def test_where_a_text_knows_what_tokens_call_for_differences_are_told_apart(study, trained):
    def with_abilities(record):
        recall = 2.0 + 0.3 * (record.arm == "no-query")
        return msgspec.structs.replace(record, abilities={"recall": recall, "free": 1.0})

    records = {key: with_abilities(record) for key, record in trained(study).items()}
    asked = study.questions["query"].contrasts[0]
    found = by_ability(study, records, asked, "near")
    assert found == pytest.approx({"recall": 0.3, "free": 0.0})


@pytest.fixture
def outcomes(tables, trained):
    """Findings of a study without a search, whose only contrast has an outcome."""

    def find(outcome, record_of_run):
        tables["protocol"] |= {"tuning_seeds": [], "factors": [1.0], "sensitivity": 0.0}
        tables["questions"] = {"query": tables["questions"]["query"]}
        tables["questions"]["query"]["contrasts"][0]["outcome"] = outcome
        study = study_from(tables)
        records = {key: record_of_run(record) for key, record in trained(study).items()}
        return findings(study, records)[0]

    return find


def test_an_ability_is_judged_by_the_loss_of_the_tokens_that_need_it(outcomes):
    def record(trained):
        recall = 2 + trained.loss / 100 + 0.3 * (trained.arm == "no-query")
        return msgspec.structs.replace(trained, abilities={"recall": recall, "free": 1.0})

    one = outcomes("recall", record)
    assert one.verdict.mean == pytest.approx(0.3, abs=1e-3)
    assert (one.word, one.tokens) == ("worse", None)
    assert show.name_of(one.contrast) == "no-query, recall"


def test_an_ability_that_no_token_needs_is_named(outcomes):
    with pytest.raises(RunError, match="near: no token of its text needs the ability 'recall'"):
        outcomes("recall", lambda trained: trained)


def curve(solved_at, steps=100):
    """A curve whose loss falls from 4 nats and is `SOLVED` at a step, measured every 10 steps."""
    halving = (4 / SOLVED) ** (-1 / solved_at)
    return tuple(
        CurvePoint(step=step, tokens=step, loss=4 * halving**step) for step in range(10, steps, 10)
    )


def test_steps_to_solve_are_compared_by_their_ratio(outcomes):
    def record(trained):
        at = (60 if trained.arm == "no-query" else 30) + trained.seed / 10
        return msgspec.structs.replace(trained, curve=curve(at))

    one = outcomes("steps", record)
    assert one.verdict.mean == pytest.approx(log(2), abs=0.01)
    assert show.difference(one, 3).startswith("x 1.99 (")
    assert one.unsolved == (0, 0)


def test_a_training_that_never_solves_its_task_counts_with_all_of_its_steps(outcomes):
    def record(trained):
        never = trained.arm == "no-query" and trained.seed < 2
        return msgspec.structs.replace(trained, curve=curve(1000 if never else 45))

    one = outcomes("steps", record)
    assert one.unsolved == (0, 2)
    assert one.verdict.differences[:3] == pytest.approx([log(90 / 45), log(90 / 45), 0.0])
    assert "2 unsolved" in show.contrast_table([one])


def test_two_forms_that_both_never_solve_a_task_are_not_equivalent(outcomes):
    one = outcomes("steps", lambda trained: msgspec.structs.replace(trained, curve=curve(1000)))
    assert (one.answer, one.verdict) == (answers.UNSOLVED, None)


def test_a_task_can_be_solved_at_the_first_measurement(study, trained):
    record = next(iter(trained(study, most=1).values()))
    assert msgspec.structs.replace(record, curve=curve(5)).steps_to_solve == (10.0, True)


def test_an_outcome_needs_rates_that_are_not_searched_for_by_the_loss(tables):
    tables["questions"]["query"]["contrasts"][0]["outcome"] = "recall"
    with pytest.raises(ConfigError, match="rates are searched for by the loss, not recall"):
        study_from(tables)
