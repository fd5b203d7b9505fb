"""Records are read whole, and a changed one is noticed."""

import pytest

from mlx_attn.errors import RunError
from studies.answers import ratios, solved
from studies.trainings import RECORDS, Training, complaints, losses, names, read, seal


def training(**changes) -> Training:
    fields = {"study": "a", "world": "tales", "arm": "standard", "seed": 1, "rate": 1.0}
    more = {"loss": 2.0, "curve": ((100, 0.8), (200, 0.1)), "key": "k", "params": 9, "seconds": 1.0}
    return Training(**{**fields, **more, **changes})


def test_the_committed_records_are_those_that_were_sealed():
    assert [*complaints()] == []


def test_a_changed_digit_is_noticed(tmp_path):
    for name in names():
        (tmp_path / f"{name}.jsonl").write_bytes((RECORDS / f"{name}.jsonl").read_bytes())
    seal(tmp_path)
    file = tmp_path / "chapter5-gpt2.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("6.21132", "6.11132"))
    (complaint,) = complaints(tmp_path)
    assert complaint.startswith("chapter5-gpt2.jsonl: its digest is")


@pytest.mark.parametrize(("add", "says"), [("{}\n", "not a record"), ("same", "has the key")])
def test_a_line_that_is_no_record_or_comes_twice_is_refused(tmp_path, add, says):
    line = (RECORDS / "chapter5-gpt2.jsonl").read_text(encoding="utf-8").splitlines()[0] + "\n"
    (tmp_path / "one.jsonl").write_text(line + (line if add == "same" else add))
    with pytest.raises(RunError, match=f"line 2: .*{says}"):
        read("one", tmp_path)


def test_an_arm_s_rates_are_those_with_the_most_seeds_then_those_that_tuned_best():
    tuned = [training(rate=rate, seed=10_000, loss=loss) for rate, loss in ((1, 1.0), (2, 0.9))]
    both = [training(rate=rate, seed=s, loss=rate) for rate in (1, 2) for s in (1, 2)]
    name = ("a", "tales", "standard")
    assert losses([*tuned, *both])[name] == {1: 2, 2: 2}
    assert losses([*tuned, *both, training(seed=3)])[name] == {1: 1, 2: 1, 3: 2.0}


def test_steps_to_solve_are_interpolated_on_the_logarithm_of_the_loss():
    steps, done = training().steps_to_solve
    assert done
    assert steps == pytest.approx(100 + 100 * 2 / 3)
    assert training(curve=((100, 0.8),)).steps_to_solve == (100.0, False)


def test_a_ratio_of_steps_is_a_geometric_mean_over_seeds():
    runs = [training(seed=s, curve=((100 * s, 0.1),)) for s in (1, 2)]
    runs += [training(arm="x", seed=s, curve=((200 * s * s, 0.1),)) for s in (1, 2)]
    assert ratios(runs, "x") == pytest.approx([(2 * 4) ** 0.5])
    assert solved(runs, "tales", "x") == "2 of 2"
