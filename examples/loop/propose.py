"""Play a night: a list of twelve edits to idea.py in the place of a program that has ideas.

    python examples/loop/propose.py [NIGHT]

The control sees no positions, so that a real improvement exists. Five edits do nothing, two let a
token read later ones, three are meant to help, two to harm. Each is judged by `mlx-attn compare
--ideas`; one that is better stays in the file. The same edits are then judged by one run each:
kept if its loss is lower. NIGHT, a number, makes another night: other windows of the text.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import click

Row = tuple[str, str, float, str]
"""What we know of an edit, what became of it, the seconds that it took, and the edit."""

EDITS = (
    ("null", "s = 100 * mx.tanh(s / 100)"),
    ("leak", "s = s - s.mean(axis=-2, keepdims=True)"),
    ("null", "s = s + 3"),
    ("real", "s = s - distance(s)"),
    ("harm", "s = 0 * s"),
    ("null", "s = s * (1 + 1e-6)"),
    ("real", "s = s - 2 * (distance(s) == 0)"),
    ("null", "s = mx.maximum(s, -100)"),
    ("leak", "s = s + mx.roll(s, -1, axis=-1) / 2"),
    ("harm", "s = s + distance(s)"),
    ("real", "s = s + 2 * (distance(s) == 1)"),
    ("null", "s = s - mx.sin(1e-4 * s)"),
)
"""Each with what we know of it, and the loop does not."""

SETTINGS = "--preset nano --steps 100 --batch-size 4 --position none"
START = (Path(__file__).parent / "idea.py").read_text()


def write(edits: list[str], folder: Path) -> None:
    """Write idea.py with these edits."""
    body = "".join(f"    {edit}\n" for edit in edits)
    (folder / "idea.py").write_text(START.replace("    return s\n", f"{body}    return s\n"))


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of mlx-attn in a folder."""
    command = [sys.executable, "-m", "mlx_attn", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def by_compare(folder: Path, settings: list[str]) -> str:
    """Return what `compare` says of the file; an idea that it has not decided is asked again."""
    while True:
        asked = ["compare", "--ideas", "--variants=standard,idea", "--minutes=10", *settings]
        result = call(folder, *asked, "--plugin=idea.py", "--json", "--quiet", "--exit-code")
        if result.returncode == 2:
            return "refused"
        if result.returncode == 1:
            raise click.ClickException(result.stderr.strip())
        answer = json.loads(result.stdout)
        if not answer["is_open"]:
            return answer["verdict"]


def by_one_run(folder: Path, settings: list[str]) -> str:
    """Return "better" if one run of the file has a lower loss than any before."""
    best = folder / "best.txt"
    asked = ["train", "--variant=idea", "--eval-every=0", "--overwrite", "--out=one", *settings]
    result = call(folder, *asked, "--plugin=idea.py", "--json", "--quiet")
    if result.returncode:
        return "refused"
    loss = json.loads(result.stdout.splitlines()[-1])["val_loss"]
    is_better = not best.exists() or loss < float(best.read_text())
    if is_better:
        best.write_text(str(loss))
    return "better" if is_better else "not known"


def play(folder: Path, number: int, judge: Callable[[Path, list[str]], str]) -> list[Row]:
    """Try all edits of a night, each on top of those that were better."""
    settings = [*SETTINGS.split(), f"--context-length={32 + number}"]
    kept: list[str] = []
    rows: list[Row] = []
    for kind, edit in EDITS:
        write([*kept, edit], folder)
        began = monotonic()
        word = judge(folder, settings)
        rows.append((kind, word, monotonic() - began, edit))
        if word == "better":
            kept.append(edit)
    return rows


def main() -> None:
    """Play a night by both rules, and print what became of each edit."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for judge in (by_compare, by_one_run):
        with TemporaryDirectory() as name:
            folder = Path(name)
            if judge is by_one_run:  # the baseline is one run, too
                write([], folder)
                judge(folder, [*SETTINGS.split(), f"--context-length={32 + number}"])
            rows = play(folder, number, judge)
        click.echo(f"\n{judge.__name__}, night {number}: {sum(row[2] for row in rows):.0f} s")
        for kind, word, seconds, edit in rows:
            click.echo(f"  {kind:5} {word:10} {seconds:5.0f} s  {edit}")


if __name__ == "__main__":
    main()
