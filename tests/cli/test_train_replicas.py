"""`train --replicas`: several seeds by one command, each an ordinary run."""

import json
from pathlib import Path

import pytest

from mlx_attn.run_directory import Run, open_run

SEVERAL = ("--replicas", "2", "--name", "both")


def by_seed(result, event: str) -> dict[int, list[dict]]:
    """The events of that kind, by seed."""
    found: dict[int, list[dict]] = {}
    for line in result.stdout.splitlines():
        record = json.loads(line)
        if record["event"] == event:
            found.setdefault(record["seed"], []).append(record)
    return found


def losses(result) -> dict[int, list[float]]:
    return {seed: [r["loss"] for r in rs] for seed, rs in by_seed(result, "step").items()}


def test_every_seed_leaves_a_run_that_can_be_sampled(train, run_command, workshop):
    assert train(*SEVERAL, "--seed=5").exit_code == 0
    assert {path.name for path in (workshop / "runs" / "both").iterdir()} == {"seed-5", "seed-6"}
    for name in ("both/seed-5", "runs/both/seed-6"):
        sample = run_command("sample", name, "--prompt", "the ", "--max-tokens", "9")
        assert len(sample.stdout) == 9 + 1


@pytest.mark.parametrize(("together", "close"), [("on", 1e-5), ("off", 0)])
def test_the_losses_are_those_of_one_command_a_seed(train, together, close):
    found = losses(train(*SEVERAL, "--json", "--log-every=1", "--together", together))
    for seed in (0, 1):
        alone = train("--json", "--log-every=1", f"--seed={seed}")
        steps = [json.loads(line) for line in alone.stdout.splitlines()]
        expected = [step["loss"] for step in steps if step["event"] == "step"]
        assert found[seed] == pytest.approx(expected, abs=close, rel=0)


@pytest.mark.parametrize("together", ["on", "off"])
def test_they_go_on_as_they_were_begun(train, together):
    steady = ("--json", "--schedule=constant", "--together", together)
    whole = losses(train("--replicas=2", "--name=whole", "--steps=9", *steady))
    begun = losses(train(*SEVERAL, "--steps=6", *steady))
    resumed = train("--resume", "both", "--steps=9", "--json")
    assert {seed: begun[seed] + losses(resumed)[seed] for seed in begun} == whole
    assert open_run_of(0).settings["together"] == (together == "on")
    assert [r["step"] for r in open_run_of(1).metrics() if r["event"] == "eval"] == [3, 6, 9]


def open_run_of(seed: int) -> Run:
    return open_run(Path("runs", "both", f"seed-{seed}"))


def test_the_progress_is_a_mean_with_its_spread(train):
    result = train(*SEVERAL)
    assert "seeds       0, 1: " in result.stderr
    assert result.stderr.count("step 6/6  loss ") == 1
    assert " ± " in result.stderr
    first, *seeds = result.stdout.splitlines()
    assert first.startswith("best val loss ")
    assert [line.split()[-1] for line in seeds] == ["runs/both/seed-0", "runs/both/seed-1"]


def test_a_script_gets_the_runs(train):
    result = train(*SEVERAL, "-q")
    assert result.stdout.split() == ["runs/both/seed-0", "runs/both/seed-1"]
    assert result.stderr == ""


def test_a_dry_run_says_which_seeds(train, workshop):
    result = train("--replicas=3", "--dry-run", "--json")
    assert json.loads(result.stdout)["seeds"] == [0, 1, 2]
    assert not (workshop / "runs").exists()


def test_they_start_from_another_run(train):
    train("--name=source")
    result = train(*SEVERAL, "--init-from=source", "--json")
    assert result.exit_code == 0
    assert open_run_of(1).settings["init_from"] == "source"


def test_one_that_diverges_is_told_and_the_command_fails(train):
    result = train(*SEVERAL, "--lr=1e30", "--warmup=0")
    assert result.exit_code == 1
    assert "2 of 2 replicas failed: seed 0: loss " in result.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--replicas=2", "--drop-rate=0.1"), "stream of random numbers"),
        (("--replicas=2", "--minutes=1"), "shared by all replicas"),
        (("--together=on",), "give --replicas N with it"),
        (("--replicas=1",), "not in the range 2<=x<=1000"),
        (("--resume=both", "--replicas=2"), "leave out"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_is_refused(train, workshop, flags, message):
    result = train(*flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (workshop / "runs").exists()


def test_nothing_is_overwritten_unasked(train):
    assert train(*SEVERAL).exit_code == 0
    again = train(*SEVERAL)
    assert again.exit_code == 1
    assert "runs/both/seed-0 exists" in again.stderr
    assert train(*SEVERAL, "--overwrite").exit_code == 0


def test_a_run_does_not_become_the_place_of_others(train):
    train("--name=both")
    result = train(*SEVERAL)
    assert result.exit_code == 1
    assert "runs/both is a run" in result.stderr
