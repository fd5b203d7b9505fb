"""Several processes that train one model, as their user starts and ends them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlx_attn.run_directory import open_run
from tests.cli.processes import FOREGROUND, PATIENCE, Process, ended, wait_for

RUN = Path("runs") / "nano-standard"
EXAMPLE = Path(__file__).parents[2] / "examples" / "talking_heads.py"
ENDLESS = ["--steps=1000000", "--eval-every=0", "--save-every=1", "--log-every=1", "--preset=nano"]
SOCKET = r"Socket|(Sending to|Receiving from) socket|was closed by the peer|made no progress"
LOST = rf"^(\[ring\]|{SOCKET}|failed with errno|Too many [\w/. ]* tasks\.\.\.|[\d\s])*"


@pytest.fixture
def two(workshop, ring) -> Iterator[Callable[..., list[Process]]]:
    """Starts a training of two ranks; whatever still runs at the end is killed."""
    started: list[Process] = []

    def start(*arguments: str, **environment: str) -> list[Process]:
        command = [sys.executable, "-c", FOREGROUND, "-m", "mlx_attn", "train", *arguments]
        places = {**os.environ, "MLX_HOSTFILE": str(ring(2)), **environment}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        for rank in "01":
            own = {**places, "MLX_RANK": rank}
            started.append(subprocess.Popen(command, cwd=workshop, env=own, **pipes))
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def without_steps(lines: list[str]) -> list[str]:
    """The lines of this program but for its reports; MLX tells of lost sockets, in pieces."""
    return [own for line in lines if (own := re.sub(LOST, "", line)) and own[:5] != "step "]


def test_a_killed_rank_ends_the_other_with_one_line_and_a_checkpoint(two, tiny_flags, train):
    ranks = two(*tiny_flags, *ENDLESS)
    wait_for(ranks[0], "step 5/")
    ranks[1].kill()
    code, _, messages = ended(ranks[0])
    (message,) = without_steps(messages)
    assert code == 1
    assert message.startswith("Error: another of the 2 ranks ended")
    assert "the last good checkpoint, of step " in message
    assert train("--resume", str(RUN), "--steps=5", "--json").exit_code == 0
    assert open_run(RUN).metrics()[-1]["steps"] >= 5


def test_a_silent_rank_ends_the_other_after_the_time_that_is_allowed(two, tiny_flags):
    ranks = two(*tiny_flags, *ENDLESS, MLX_ATTN_RANK_TIMEOUT="2")
    wait_for(ranks[0], "step 2/")
    ranks[1].send_signal(signal.SIGSTOP)
    code, _, messages = ended(ranks[0])
    (message,) = without_steps(messages)
    assert code == 1
    assert message.startswith("Error: nothing was heard of another of the 2 ranks for 2 s")


def test_ctrl_c_on_any_rank_saves_and_ends_both_in_order(two, tiny_flags, workshop):
    ranks = two(*tiny_flags, *ENDLESS)
    wait_for(ranks[0], "step 3/")
    ranks[1].send_signal(signal.SIGINT)
    (code, _, messages), (other_code, _, silence) = map(ended, ranks)
    assert (code, other_code, silence) == (130, 130, [])
    step = open_run(workshop / RUN).metrics()[-1]["steps"]
    (message,) = without_steps(messages)
    assert message == f"saved at step {step}; to resume:  mlx-attn train --resume {RUN}"


def test_only_rank_0_has_a_say_and_speaks(two, tiny_flags, workshop):
    ranks = two(*tiny_flags, "--json", "--out=one")
    outputs = [process.communicate(timeout=PATIENCE) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert outputs[1] == ("", "")
    assert [path.parent.name for path in workshop.rglob("config.json")] == ["one"]
    last = json.loads(outputs[0][0].splitlines()[-1])
    assert (last["event"], last["run"]) == ("end", "one")


@pytest.mark.slow
def test_mlx_launch_trains_a_user_s_own_variant_with_two_ranks(workshop, tiny_flags, ring):
    (host,), _ = json.loads(ring(2).read_text())
    launcher = [Path(sys.executable).parent / "mlx.launch", "-n", "2", "-p", host.split(":")[1]]
    own = [f"--plugin={EXAMPLE}", "--variant=talk"]
    command = [*launcher, sys.executable, "-m", "mlx_attn", "train", *own, *tiny_flags, "--json"]
    streams = {"stdin": subprocess.PIPE, "capture_output": True, "text": True}
    result = subprocess.run(command, cwd=workshop, timeout=PATIENCE, **streams)
    events = [json.loads(line) for line in result.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1], kinds.count("end")) == ("start", "end", 1)
    settings = json.loads((workshop / events[-1]["run"] / "config.json").read_text())
    assert settings["plugins"][0]["names"] == ["logits=talk", "mixing=talk"]


TWO_HEADS = ["--n-heads=2", "--position=alibi", "--eval-every=0", "--compile=off"]
"""Where the slopes of 0.1.0's runs are not the default's: for four heads they are the same."""


def test_two_ranks_train_the_model_of_one_process_and_are_resumed_to_the_same_bits(
    two, tiny_flags, workshop, train
):
    constant = [*TWO_HEADS, "--schedule=constant", "-q"]
    for arguments in (
        [*tiny_flags, *constant, "--steps=2", "--out=cut"],
        [*tiny_flags, *constant, "--steps=4", "--out=whole"],
        ["--resume=cut", "--steps=4", "-q"],
    ):
        assert [ended(process)[0] for process in two(*arguments)[-2:]] == [0, 0]
    cut, whole = (workshop / name / "model.safetensors" for name in ("cut", "whole"))
    assert cut.read_bytes() == whole.read_bytes()
    assert train(*constant, "--steps=4", "--out=single").exit_code == 0
    shared, single = (open_run(workshop / name).metrics()[-1] for name in ("whole", "single"))
    assert shared["val_loss"] == pytest.approx(single["val_loss"], abs=2e-6)
