"""Processes of the command line that tests start, listen to, and send signals."""

import subprocess

Process = subprocess.Popen[str]

PATIENCE = 300  # a GPU may have to compile its kernels first
FOREGROUND = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A shell's background job ignores signals, and so would what the tests start from one."""


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
