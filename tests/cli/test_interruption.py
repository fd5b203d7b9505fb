"""Signals and pipes, as a shell sends them, to real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlx_attn.cli.main import graceful_interrupt
from mlx_attn.run_directory import open_run
from mlx_attn.training.trainer import Trainer
from tests.cli.conftest import TINY_FLAGS

Process = subprocess.Popen[str]
Start = Callable[..., Process]
PATIENCE = 300  # a GPU may have to compile its kernels first
FOREGROUND = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A shell's background job ignores signals, and so would what the tests start from one."""

ENDLESS = ["--steps=1000000", "--eval-every=0", "--log-every=1", "--preset=nano"]


def wait_for(process: Process, beginning: str) -> None:
    """Read stderr up to the first line that begins like that."""
    assert process.stderr
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith(beginning):
            return
    raise AssertionError(f"no line begins with '{beginning}': {seen}")


def ended(process: Process) -> tuple[int, str, list[str]]:
    """Wait for the exit code, stdout, and the lines of stderr."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err.splitlines()


@pytest.fixture(autouse=True)
def foreground() -> Iterator[None]:
    """The tests' own process minds Ctrl-C, though it be a background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def python(workshop) -> Iterator[Start]:
    """Starts Python with these arguments; whatever still runs at the end is killed."""
    started: list[Process] = []

    def start(*arguments: str, **streams: Any) -> Process:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        command = [sys.executable, "-c", FOREGROUND, *arguments]
        process = subprocess.Popen(command, cwd=workshop, text=True, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_saves_tells_how_to_go_on_and_exits_with_130(python, train, workshop):
    process = python("-m", "mlx_attn", "train", *TINY_FLAGS, *ENDLESS)
    wait_for(process, "step 3/")
    process.send_signal(signal.SIGINT)
    code, out, messages = ended(process)
    assert (code, out) == (130, "")
    assert "finishing this step; Ctrl-C again quits at once" in messages
    command = messages[-1].partition("to resume:  mlx-attn ")[2]
    assert command == "train --resume runs/nano-standard"
    step = open_run(workshop / "runs" / "nano-standard").metrics()[-1]["steps"]
    assert messages[-1].startswith(f"saved at step {step};")
    assert train(*command.split()[1:], f"--steps={step + 1}").exit_code == 0
    history = open_run(workshop / "runs" / "nano-standard").metrics()
    assert [r["step"] for r in history if r["event"] == "step"] == list(range(1, step + 2))


def test_when_the_reader_of_the_reports_is_gone_the_training_is_saved(python, workshop):
    process = python("-m", "mlx_attn", "train", *TINY_FLAGS, *ENDLESS, "--json")
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE) == 130
    assert (workshop / "runs" / "nano-standard" / "checkpoint" / "last.safetensors").exists()
    assert "Traceback" not in process.stderr.read()


def test_a_signal_keeps_finished_trainings_and_says_how_to_go_on(python):
    shared = [flag for flag in TINY_FLAGS if "every" not in flag]
    arms = ["--variants=standard,no-query", "--seeds=40", "--no-tune", "--jobs=1"]
    process = python("-m", "mlx_attn", "compare", *arms, *shared)
    wait_for(process, "standard, seed")
    process.send_signal(signal.SIGTERM)
    code, out, messages = ended(process)
    assert (code, out) == (130, "")
    assert messages[-1] == "interrupted; finished trainings are kept: the same command continues"


@pytest.mark.parametrize("module", ["mine", "lost", "click"])
def test_ctrl_c_in_a_plugin_or_an_import_ends_the_process(python, workshop, module):
    lost = "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException: pass"
    (workshop / "mine.py").write_text("import lost")
    (workshop / f"{module}.py").write_text(lost)
    process = python("-m", "mlx_attn", "train", "--plugin=mine.py", *TINY_FLAGS, *ENDLESS)
    assert ended(process) == (-signal.SIGINT if module == "click" else 130, "", [])


HANG_UP = """
import os, signal
from mlx_attn.comparison.runner import worker_pool
signal.signal(signal.SIGHUP, lambda *_: None)
with worker_pool(1) as pool:
    pool.submit(os.killpg, 0, signal.SIGHUP).result()
    print(pool.submit(abs, -2).result())
"""


def test_of_a_closed_terminal_only_the_process_itself_hears_and_not_those_that_train(python):
    assert ended(python("-c", HANG_UP, start_new_session=True)) == (0, "2\n", [])


def test_a_second_signal_quits_at_once(train, monkeypatch):
    def interrupted(trainer):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "launch_step", interrupted)
    result = train()
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "stopped; nothing was saved"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_interrupts(number):
    said = []
    # Under nohup a shell makes the tests ignore SIGHUP, and children inherit that.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with graceful_interrupt(lambda: said.append("asked")) as asked:
            assert not asked()
            os.kill(os.getpid(), number)
            assert asked()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert said == ["asked"]
