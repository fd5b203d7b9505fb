"""`mlx-attn compare` in two processes, as their user starts them, of a user's own variant."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Process = subprocess.Popen[str]
PATIENCE = 90
EXAMPLE = Path(__file__).parents[2] / "examples" / "talking_heads.py"
LONG = ["--seeds=200", "--steps=50"]
BRIEF = [
    "--seeds=1",
    "--reference=none",
    "--no-tune",
    "--no-noise",
    "--budgets=steps",
    "--jobs=1",
    "--steps=4",
]


@pytest.fixture
def two(workshop, ring, tiny_flags) -> Iterator[Callable[..., list[Process]]]:
    """Starts a comparison of two ranks, with a directory each; what still runs is killed."""
    started: list[Process] = []
    usual = [flag for flag in tiny_flags if "every" not in flag]

    def start(*arguments: str) -> list[Process]:
        places = {**os.environ, "MLX_HOSTFILE": str(ring(2))}
        command = [sys.executable, "-m", "mlx_attn", "compare", f"--plugin={EXAMPLE}"]
        command.append("--variants=standard,talk")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        for rank in "01":
            own = [*command, *usual, *BRIEF, *arguments, f"--out=rank-{rank}"]
            started.append(
                subprocess.Popen(own, cwd=workshop, env={**places, "MLX_RANK": rank}, **pipes)
            )
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_both_train_a_share_and_only_rank_0_speaks_and_reports(two, workshop):
    ranks = two("--json")
    outputs = [process.communicate(timeout=PATIENCE) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert json.loads(outputs[0][0])["control"] == "standard"
    assert outputs[1] == ("", "")
    kept = [
        {path.name: path.read_text() for path in (workshop / f"rank-{rank}/trainings").iterdir()}
        for rank in range(2)
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2
    assert [path.parent.name for path in workshop.rglob("comparison.json")] == ["rank-0"]


@pytest.mark.slow
def test_a_killed_rank_ends_the_other_with_one_line_and_keeps_what_is_finished(two, workshop):
    ranks = two(*LONG)
    assert ranks[0].stderr
    lines = iter(ranks[0].stderr)
    assert any("nats per token" in line for line in lines)
    ranks[1].kill()
    *_, last = lines
    assert ranks[0].wait(PATIENCE) == 1
    assert last.startswith("Error: another of the 2 ranks ended, or the connection to it broke; ")
    assert last.endswith("finished trainings are kept: the same command continues\n")
    assert any((workshop / "rank-0" / "trainings").iterdir())
