"""A command that is killed while it writes a file, and given again, ends in the same bits.

Weights, checkpoint, losses and samples of a training, verdicts of a comparison. KILLS is how many
moments each kind of work is killed at: `KILLS=50 pytest tests/faults/test_kills.py`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_attn.arrays import load_arrays
from mlx_attn.run_directory import open_run

KILLS = int(os.environ.get("KILLS", 3))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
SIZES = "--context-length 16 --emb-dim 16 --n-heads 2 --n-layers 1 --batch-size 4 --warmup 2"
CHILD = """
import os, signal, sys
from mlx_attn.cli import main

number, deadly, arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
del sys.argv[1:]  # which a comparison records
writes = 0

def count_writes(event, facts):
    global writes
    opens = event == "open" and facts[2] & (os.O_WRONLY | os.O_RDWR)
    if opens or event in ("os.rename", "os.remove", "os.mkdir"):
        writes += 1
        if writes == deadly:
            os.kill(os.getpid(), number)

if arguments[0] == "compare":  # without figures, which take longer than the trainings
    from mlx_attn.comparison import report
    report.figure_for_page = lambda draw: "<svg></svg>"
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background ignores
sys.addaudithook(count_writes)
try:
    main(arguments)
finally:
    print(f"\\nwrites: {writes}", file=sys.stderr)
"""
"""The command line, which sends itself a signal when it opens, renames or removes its n-th file."""


def run(folder: Path, command: str, number: int = 0, deadly: int = 0) -> tuple[int, int]:
    """Run a command until it ends; gives its exit code and how often it wrote."""
    arguments = [sys.executable, "-c", CHILD, str(number), str(deadly), *command.split()]
    environment = {**os.environ, "MLX_ATTN_DATA_DIR": str(folder / "data")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # so that all processes write equally often
    ended = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert "Traceback" not in ended.stderr or ended.returncode == 130, ended.stderr
    writes = re.search(r"^writes: (\d+)$", ended.stderr, re.MULTILINE)
    return ended.returncode, int(writes[1]) if writes else 0


def learned(path: Path) -> dict[str, Any]:
    """All that a training leaves but what depends on the clock."""
    saved = open_run(path)
    reports = [timeless(r) for r in saved.metrics() if r["event"] not in ("start", "end")]
    checkpoint, facts = load_arrays(saved.checkpoint)
    arrays = {"best": load_arrays(saved.weights)[0], "last": checkpoint}
    return {
        "reports": reports,
        "samples": (path / "samples.txt").read_text(),
        "progress": timeless(json.loads(facts["progress"])),
        **{k: {n: np.array(a).tobytes() for n, a in arrays[k].items()} for k in arrays},
    }


def found_out(path: Path) -> dict[str, Any]:
    """The verdicts of a comparison, and all that its trainings learned."""
    files = [path / "comparison.json", *sorted(path.glob("trainings/*.json"))]
    return {file.name: timeless(json.loads(file.read_text())) for file in files}


def timeless(value: Any) -> Any:
    """A record without its times, and without the name of its directory."""
    clock = ("seconds", "seconds_left", "tok_s", "peak_memory", "timed_steps", "training_seconds")
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in (*clock, "date", "name")}
    return [timeless(each) for each in value] if isinstance(value, list) else value


KINDS: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "a training": (
        f"train --data story.txt --tokenizer bpe --vocab-size 320 {SIZES} --drop-rate 0.2 "
        "--steps 30 --eval-every 10 --save-every 3 --log-every 5 --track 9 --quiet",
        learned,
    ),
    "a comparison": (
        f"compare --variants standard,no-query --data story.txt --tokenizer char {SIZES} --steps 8 "
        "--no-tune --seeds 2 --jobs 1 --quiet",
        found_out,
    ),
}


@pytest.mark.parametrize(
    "kind", ["a training", pytest.param("a comparison", marks=pytest.mark.slow)]
)
def test_what_is_killed_at_a_write_ends_in_the_same_bits(tmp_path, kind):
    story = "the red cat sat on a mat. an old dog sat by the door. " * 40
    (tmp_path / "story.txt").write_text(story)
    command, left = KINDS[kind]
    code, writes = run(tmp_path, f"{command} --out straight")
    assert code == 0
    expected = left(tmp_path / "straight")
    for n in range(KILLS):
        shutil.rmtree(tmp_path / "data")  # so that the text is prepared again
        number, path = SIGNALS[n % len(SIGNALS)], tmp_path / f"killed-{n}"
        deadly = 1 + (2 * n + 1) * writes // (2 * KILLS)
        assert run(tmp_path, f"{command} --out {path.name}", number, deadly)[0] in (-number, 130)
        config = path / "config.json"
        begun = kind == "a training" and config.exists() and config.stat().st_size
        again = f"train --resume {path.name} --quiet" if begun else f"{command} --out {path.name}"
        assert run(tmp_path, again)[0] == 0
        assert left(path) == expected, f"{signal.Signals(number).name} at write {deadly}"
        assert not [*path.rglob("*.tmp")]
