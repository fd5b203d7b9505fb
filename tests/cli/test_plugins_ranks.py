"""`--plugin FILE` in two processes that `mlx.launch` starts."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "talking_heads.py"
PATIENCE = 180
BRIEF = ["--seeds=1", "--reference=none", "--no-tune", "--no-noise", "--budgets=steps", "--jobs=1"]


@pytest.fixture
def launch(workshop, ring, tiny_flags) -> Callable[..., str]:
    """What two ranks of a command with the example's own copy write to stdout."""
    shutil.copy(EXAMPLE, workshop / "talk.py")

    def run(command: str, *arguments: str) -> str:
        (host,), _ = json.loads(ring(2).read_text())
        launcher = [Path(sys.executable).parent / "mlx.launch", "-n", "2", "-p", host.split(":")[1]]
        sizes = [flag for flag in tiny_flags if command == "train" or "every" not in flag]
        ours = [sys.executable, "-m", "mlx_attn", command, "--plugin=talk.py", *sizes, *arguments]
        streams = {"stdin": subprocess.PIPE, "capture_output": True, "text": True}
        result = subprocess.run([*launcher, *ours], cwd=workshop, timeout=PATIENCE, **streams)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_two_ranks_train_a_user_s_own_variant(launch, workshop):
    events = [json.loads(line) for line in launch("train", "--variant=talk", "--json").splitlines()]
    assert [event["event"] for event in events].count("end") == 1
    assert (events[-1]["variant"], events[-1]["steps"]) == ("talk", 6)
    settings = json.loads((workshop / events[-1]["run"] / "config.json").read_text())
    assert settings["plugins"][0]["names"] == ["logits=talk", "mixing=talk"]


def test_two_ranks_compare_it_and_share_the_trainings(launch, workshop):
    result = json.loads(
        launch("compare", "--variants=standard,talk", *BRIEF, "--out=both", "--json")
    )
    assert result["control"] == "standard"
    assert len(list((workshop / "both" / "trainings").iterdir())) == 2
