"""`--dry-run` of probe, convert and sample: what they would take, said without taking it."""

import json
import subprocess
import sys

import pytest

COMMANDS = {
    "probe": ("probe",),
    "convert": ("convert", "--to=merged"),
    "curve": ("convert", "--rank=1..4"),
    "sample": ("sample", "--max-tokens=4"),
}


def plan_of(run_command, *arguments: str) -> dict:
    made = run_command(*arguments, "--dry-run", "--json")
    assert made.exit_code == 0, made.output
    return json.loads(made.stdout)


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_it_is_said_without_reading_the_weights(arguments, train, run_command, workshop):
    train("--out=runs/mine")
    (workshop / "runs/mine/model.safetensors").unlink()
    before = sorted(path.name for path in workshop.rglob("*"))
    plan = plan_of(run_command, *arguments)
    assert plan["peak"] > plan["weights"] == 4 * plan["parameters"]
    assert sorted(path.name for path in workshop.rglob("*")) == before


def test_what_takes_more_is_said_to_take_more_and_people_read_it_in_megabytes(train, run_command):
    train("--out=runs/mine")
    lines = run_command("convert", "mine", "--to=merged", "--dry-run").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("run", "model", "parameters", "cache", "becomes", "--to", "usable")
    ]
    for less, more in (("sample", "-n8"), ("probe", "--windows=64")):
        assert plan_of(run_command, less)["peak"] < plan_of(run_command, less, more)["peak"]


LARGER = ("--n-layers=4", "--n-heads=12", "--emb-dim=768", "--context-length=128", "--block=book")


MEASURE = """
import os, sys
child = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ)
_, status, used = os.wait4(child, 0)
print(used.ru_maxrss)
sys.exit(status)
"""
"""Run from a process of its own: Linux gives a child the peak of the process that started it."""


@pytest.mark.slow
def test_no_command_takes_more_than_it_said(train, run_command, workshop):
    train("--out=runs/mine", "--position=learned", *LARGER)
    for name, arguments in COMMANDS.items():
        peak = plan_of(run_command, *arguments)["peak"]
        command = [sys.executable, "-c", MEASURE, "-m", "mlx_attn", *arguments]
        made = subprocess.run(command, capture_output=True, text=True, check=True)
        unit = 1 if sys.platform == "darwin" else 1024
        assert int(made.stdout.splitlines()[-1]) * unit <= peak, name
