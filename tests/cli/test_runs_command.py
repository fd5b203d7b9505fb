import io
import json
import os

import pytest
from rich.console import Console

from mlx_attn.cli.output import note
from mlx_attn.text.tokenizers import train_tokenizer
from mlx_attn.ui.terminal import print_rows
from tests.cli.conftest import untrained_run

BYTES = train_tokenizer("byte", "", 0)


@pytest.fixture
def place(workshop):
    """A directory with a run of 40 steps, runs/good, and two that cannot be used."""
    for name in ("good", "empty", "new"):
        run = untrained_run(workshop / "runs" / name, BYTES, variant="merged", corpus="tales")
        for step, loss in ((20, 2.0), (40, 2.5)):
            run.add_report({"event": "eval", "step": step, "val_loss": loss, "bits_per_byte": 1.5})
    (workshop / "runs" / "empty" / "config.json").write_text("{")
    (workshop / "runs" / "new" / "model.safetensors").unlink()
    return workshop


def test_a_run_is_listed_with_its_lowest_loss_and_its_steps(place, run_command):
    result = run_command("runs")
    assert result.stderr.startswith("3 runs, ")
    good = next(line for line in result.stdout.splitlines() if line.startswith("good"))
    facts = "good   1.5000 bits per byte, merged, made-up stories, seed 7, 40 steps, "
    assert good.startswith(facts)
    assert good.endswith("ago")


def test_json_has_numbers_and_why_a_run_cannot_be_used(place, run_command):
    untrained_run(place / "runs" / "made", BYTES, converted={"params": "many"})
    runs = {run["name"]: run for run in json.loads(run_command("runs", "--json").stdout)["runs"]}
    good = runs["good"]
    assert (good["val_loss"], good["steps"], good["path"]) == (2.0, 40, "runs/good")
    assert (good["n_bytes"] > 1000, good["problem"]) == (True, "")
    assert runs["empty"]["problem"].startswith("runs/empty/config.json: damaged")
    assert runs["new"]["problem"].startswith("no weights yet")
    assert runs["made"]["problem"].startswith("runs/made/config.json: damaged")


def test_nothing_is_told_of_what_an_imported_model_will_learn(place, run_command):
    untrained_run(place / "runs" / "got", BYTES, variant="merged", text={"data": "tales"})
    assert run_command("sample", "-m", "1").stderr == "the latest run: runs/got (merged)\n"
    assert run_command("runs").stdout.startswith("got    merged, ")
    assert "seed" not in run_command("runs").stdout.partition("\n")[0]


@pytest.fixture
def several(workshop):
    """A folder with runs of two texts: a is the oldest, and c, the latest, was interrupted."""
    rows = [("c", "t", 2.0, 9000), ("b", "t", 1.0, 0), ("a", "s", 3.0, 3000)]
    for age, (name, text, loss, size) in enumerate(rows):
        run = untrained_run(workshop / "runs" / name, BYTES, variant="merged", corpus=text)
        run.add_report({"event": "eval", "step": 10, "val_loss": loss})
        reason = "interrupted" if name == "c" else "done"
        run.add_report({"event": "end", "steps": 12, "reason": reason})
        (run.path / "track").mkdir()
        (run.path / "track" / "0").write_bytes(bytes(size))
        for file in run.path.rglob("*"):
            os.utime(file, (1e9 - 1000 * age, 1e9 - 1000 * age))
        for name in (".DS_Store", "._config.json"):  # a Mac's, later
            (run.path / name).touch()
    return workshop


def test_a_training_that_was_stopped_has_the_step_that_it_was_stopped_at(several, run_command):
    (line,) = (line for line in run_command("runs").stdout.splitlines() if line[0] == "c")
    assert "12 steps" in line


@pytest.mark.parametrize(
    ("key", "order"),
    [("age", "cba"), ("loss", "abc"), ("text", "acb"), ("size", "cab")],
)
def test_runs_are_sorted_and_losses_only_within_a_text(several, run_command, key, order):
    runs = json.loads(run_command("runs", "--sort", key, "--json").stdout)["runs"]
    assert "".join(run["name"] for run in runs) == order


def test_rm_removes_what_is_named_after_a_yes_and_nothing_after_a_no(several, run_command):
    assert run_command("runs", "rm", "a", input="n\n").exit_code == 1
    assert (several / "runs" / "a" / "model.safetensors").exists()
    (several / "runs" / "a" / "notes.md").write_text("mine")
    result = run_command("runs", "rm", "a", "runs/b", input="y\n")
    assert result.stdout == "removed runs/a; notes.md stays there\nremoved runs/b\n"
    assert run_command("runs", "rm", "--yes", "c").exit_code == 0
    assert [path.name for path in sorted((several / "runs").rglob("*"))] == ["a", "notes.md"]


def test_in_a_narrow_terminal_facts_stand_below_their_name_and_words_stay_whole(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    narrow = Console(file=terminal, width=20, color_system=None)
    print_rows([("a-long-name", "1.5 bits per byte")], narrow)
    assert terminal.getvalue().split("\n")[:2] == ["a-long-name", "  1.5 bits per byte "]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "20")
    note("3 runs; mlx-attn runs rm NAME removes one")
    assert max(len(line) for line in terminal.getvalue().splitlines()) <= 20
