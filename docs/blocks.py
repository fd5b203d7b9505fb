"""Run every shell and Python block of pages, word for word: `python docs/blocks.py README.md ...`.

The blocks run in a folder like a fresh clone that does not hold the package, with the Python that
runs this script: `.ci/run` uses an environment that holds the wheel and its dependencies, because
a development environment cannot tell whether the plain install is complete. Pages run in the order
in which a reader meets them, and later pages use the runs that earlier ones trained.

Trainings are tiny: `SMALL` sets the settings that a block leaves open, by environment variables.
`DOCS_FULL=1` leaves every setting as a reader has it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/tour.md", "docs/open.md", "docs/repl.md", "docs/python.md")
SMALL = {"STEPS": 4, "EVAL_EVERY": 2, "EMB_DIM": 16, "N_LAYERS": 1, "BATCH_SIZE": 2, "WARMUP": 1}
PROGRAMS = {
    "python": f'exec "{sys.executable}" "$@"',
    # A page may name a command twice: it runs once.
    "mlx-attn": f"""grep -sqxF -- "$*" "$RAN" && exit
echo "$*" >> "$RAN"
exec "{sys.executable}" -m mlx_attn "$@\"""",
    # Installing and testing is the business of .ci/run.
    "pip": "",
    "pytest": "",
    "uvx": 'exec "$@"',
}


def blocks(page: str) -> list[str]:
    """Return the blocks of a page as shell scripts, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"```(sh|python)\n(.*?)```", text, re.DOTALL)
    return [block if language == "sh" else as_a_script(block) for language, block in found]


def as_a_script(block: str) -> str:
    """Return a command that runs Python from a file, so that it can start processes."""
    return f"cat > block.py <<'END_OF_BLOCK'\n{block}END_OF_BLOCK\npython block.py"


def clone(place: Path) -> dict[str, str]:
    """Put into a folder the files that the blocks name, and return the environment for them."""
    programs = place / "bin"
    programs.mkdir()
    for name, line in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    shutil.copy(ROOT / "train.py", place)
    shutil.copytree(ROOT / "examples", place / "examples")
    small = {} if "DOCS_FULL" in os.environ else SMALL
    return {
        **os.environ,
        **{f"MLX_ATTN_{key}": str(value) for key, value in small.items()},
        "MLX_ATTN_DATA_DIR": str(place / "data"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": "",
        "BROWSER": "true",
    }


# The README's import reads a checkpoint, and the tokenizer of its small vocabulary.
CHECKPOINT = """
mlx-attn train --block book --position learned --emb-dim 96 --n-heads 12 --n-layers 1 --steps 4 \\
    -q --out book
mlx-attn export book --to book
mv book-book/model.safetensors book/tokenizer.* .
rm -r book book-book
"""


def main(pages: Sequence[str]) -> None:
    """Run the blocks of these pages, or all, and end with the first that fails."""
    with tempfile.TemporaryDirectory() as folder:
        environment = clone(Path(folder))
        for page in pages or PAGES:
            environment["RAN"] = str(Path(folder, "bin", f"{Path(page).stem}.ran"))
            for block in [*([CHECKPOINT] if page == PAGES[0] else ()), *blocks(page)]:
                began = time.perf_counter()
                command = ["bash", "-e", "-c", block]
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                )
                if done.returncode:
                    raise SystemExit(f"{page}:\n{block}\n{done.stdout}\n{done.stderr}")
                first = block.strip().splitlines()[0]
                print(f"{time.perf_counter() - began:6.1f} s  {page}: {first}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
