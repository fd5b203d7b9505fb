"""The costs of the data set `lengths` are those that were computed from the records elsewhere."""

import json
import subprocess
import sys

import pytest

from studies.lengths import SHORT, Lengths, command, option
from studies.trainings import TUNING

# Pooled over studies by random effects of searches, as a reader recomputed it from the records.
POOLED = {
    "no-out-proj": {"shakespeare": 0.0385, "python": 0.0288, "tales": 0.0082},
    "no-query": {"shakespeare": 0.0728, "python": 0.0127, "tales": 0.0223},
    "one-head": {"shakespeare": -0.0386, "python": -0.0315, "tales": 0.0326},
    "no-value": {"shakespeare": 0.0307, "python": 0.0179, "tales": -0.0020},
    "key-as-value": {"shakespeare": 0.0623, "python": 0.0287, "tales": 0.0225},
    "merged": {"shakespeare": -0.015},
    "one-head-no-query": {"shakespeare": 0.0103, "python": -0.0034},
    "one-head-no-out-proj": {"shakespeare": 0.0159, "python": 0.0015, "tales": 0.0676},
    "no-value-no-out-proj": {"shakespeare": 0.1560, "python": 0.1083, "tales": 0.0384},
}
INTERVALS = {
    ("no-out-proj", "tales"): (0.0047, 0.0117),
    ("no-query", "python"): (0.009, 0.016),
    ("one-head", "python"): (-0.047, -0.016),
    ("no-value", "shakespeare"): (0.021, 0.040),
}
# Six seeds of one study each, by a paired t.
SIX = {
    "no-out-proj": (0.0099, -0.0004, 0.0203),
    "merged": (-0.0002, -0.006, 0.006),
    "no-query": (0.0330, 0.024, 0.042),
    "one-head": (0.0558, 0.049, 0.063),
}


@pytest.fixture(scope="module")
def lengths() -> Lengths:
    return Lengths.read()


@pytest.mark.parametrize(("arm", "text"), [(a, t) for a, row in POOLED.items() for t in row])
def test_a_pooled_mean_is_the_one_that_was_recomputed(lengths, arm, text):
    assert lengths.costs[arm, text, SHORT].estimate.mean == pytest.approx(
        POOLED[arm][text], abs=0.002
    )


@pytest.mark.parametrize("place", INTERVALS)
def test_a_pooled_interval_is_the_one_that_was_recomputed(lengths, place):
    found = lengths.costs[(*place, SHORT)].estimate.interval()
    assert found == pytest.approx(INTERVALS[place], abs=0.001)


@pytest.mark.parametrize("arm", SIX)
def test_the_six_seeds_of_4800_steps_give_the_interval_of_a_paired_t(lengths, arm):
    known = [t for t in lengths.trainings if t.study != "lengths-late"]
    estimate = Lengths(known, lengths.table).costs[arm, "shakespeare", 4800].estimate
    assert estimate.seeds == 6
    assert (estimate.mean, *estimate.interval()) == pytest.approx(SIX[arm], abs=0.001)


def test_all_arms_of_a_seed_were_trained_by_one_machine_but_in_one_study(lengths):
    machines: dict[tuple[str, str, int], set[str]] = {}
    for t in lengths.trainings:
        if t.machine and t.seed < TUNING:
            machines.setdefault((t.study, t.world, t.seed), set()).add(t.machine)
    mixed = {(study, world) for (study, world, _), found in machines.items() if len(found) > 1}
    # The standard form of this world was trained on a machine that rounds in another order.
    assert mixed == {("own-rates", "python-own")}


def test_the_present_code_trains_a_record_again(lengths, tmp_path):
    place = "fresh-seeds", "tales-fresh", "standard", 1000
    (record,) = [t for t in lengths.trainings if (t.study, t.world, t.arm, t.seed) == place]
    text = lengths.table.texts["tales"]
    rates = {name: rate * record.rate for name, rate in text.rates.items()}
    settings = {**text.settings, **lengths.table.shared, **rates, "steps": SHORT, "seed": 1000}
    options = " ".join(option(name, value) for name, value in settings.items()).split()
    train = [sys.executable, "-m", "mlx_attn", "train", *options, "--eval-every=0", "--json"]
    done = subprocess.run(
        [*train, f"--out={tmp_path / 'run'}"], check=True, capture_output=True, text=True
    )
    end = json.loads(done.stdout.splitlines()[-1])
    # Another machine adds up products in another order.
    assert end["val_loss"] == pytest.approx(record.loss, abs=0.005)


def test_the_registered_trainings_are_of_the_registered_code(lengths):
    late = [t for t in lengths.trainings if t.study == "lengths-late"]
    assert {t.commit for t in late} <= {"c5ff1290a0a3"}
    assert {t.rate for t in late} <= {1.0}


def test_a_command_has_the_settings_of_the_text_and_the_rates_of_the_length(lengths):
    (contrast,) = [c for c in lengths.table.contrasts if c.arm == "one-head-no-query"]
    asked = command(lengths.table, contrast, "shakespeare", 4800, 12)
    assert asked.startswith(
        "mlx-attn compare --arm 'one-head: standard, n_heads=1' "
        "--arm 'one-head-no-query: no-query, n_heads=1' --data tiny-shakespeare "
    )
    for part in ("--lr 0.0119", "--muon-lr 0.0179", "--start book", "--steps 4800", "--no-tune"):
        assert f" {part}" in asked
