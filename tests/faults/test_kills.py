"""A training that is killed while it writes a file, and given again, ends in the same bits.

Weights, checkpoint, losses and samples of a training. KILLS is how many moments it is killed at:
`KILLS=50 pytest tests/faults/test_kills.py`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mlx_attn.arrays import load_arrays
from mlx_attn.run_directory import open_run

KILLS = int(os.environ.get("KILLS", 3))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
SIZES = "--context-length 16 --emb-dim 16 --n-heads 2 --n-layers 1 --batch-size 4 --warmup 2"
CHILD = """
import os, signal, sys
from mlx_attn.cli.main import main

number, deadly, arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
writes = 0

def count_writes(event, facts):
    global writes
    opens = event == "open" and facts[2] & (os.O_WRONLY | os.O_RDWR)
    if opens or event in ("os.rename", "os.remove", "os.mkdir"):
        writes += 1
        if writes == deadly:
            os.kill(os.getpid(), number)

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
    """Return everything in a run that does not depend on the clock."""
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


def timeless(value: Any) -> Any:
    """A record without its times, and without the name of its directory."""
    clock = ("seconds", "seconds_left", "tok_s", "peak_memory", "timed_steps", "training_seconds")
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in (*clock, "date", "name")}
    return [timeless(each) for each in value] if isinstance(value, list) else value


COMMAND = (
    f"train --data story.txt --tokenizer bpe --vocab-size 320 {SIZES} --drop-rate 0.2 "
    "--steps 12 --eval-every 3 --log-every 5 --track 9 --quiet"
)


def test_a_training_that_is_killed_at_a_write_ends_in_the_same_bits(tmp_path):
    story = "the red cat sat on a mat. an old dog sat by the door. " * 40
    (tmp_path / "story.txt").write_text(story)
    code, writes = run(tmp_path, f"{COMMAND} --out straight")
    assert code == 0
    expected = learned(tmp_path / "straight")
    for n in range(KILLS):
        shutil.rmtree(tmp_path / "data")  # so that the text is prepared again
        number, path = SIGNALS[n % len(SIGNALS)], tmp_path / f"killed-{n}"
        deadly = 1 + (2 * n + 1) * writes // (2 * KILLS)
        assert run(tmp_path, f"{COMMAND} --out {path.name}", number, deadly)[0] in (-number, 130)
        config = path / "config.json"
        begun = config.exists() and config.stat().st_size
        again = f"train --resume {path.name} --quiet" if begun else f"{COMMAND} --out {path.name}"
        assert run(tmp_path, again)[0] == 0
        assert learned(path) == expected, f"{signal.Signals(number).name} at write {deadly}"
        assert not [*path.rglob("*.tmp")]


def test_an_export_that_is_ended_at_a_write_leaves_nothing_behind(tmp_path):
    (tmp_path / "story.txt").write_text("the red cat sat on a mat. " * 40)
    assert run(tmp_path, f"train --data story.txt {SIZES} --steps 1 --quiet --out a")[0] == 0
    before = sorted(tmp_path.rglob("*"))
    code, writes = run(tmp_path, "export a --to mlx-lm --out b")
    assert code == 0
    shutil.rmtree(tmp_path / "b")
    for deadly in range(2, writes, max(1, writes // KILLS)):
        assert run(tmp_path, "export a --to mlx-lm --out b", signal.SIGTERM, deadly)[0] == 130
        assert sorted(tmp_path.rglob("*")) == before, f"at write {deadly}"
