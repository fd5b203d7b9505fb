"""A probing task is trained, resumed, sampled and listed like any text."""

import json

import pytest

from mlx_attn.text import sources
from mlx_attn.text.tasks import TASKS
from tests.cli.conftest import refused

SMALL = [
    "--emb-dim",
    "16",
    "--n-heads",
    "2",
    "--n-layers",
    "1",
    "--batch-size",
    "4",
    "--steps",
    "4",
    "--eval-every",
    "2",
]


@pytest.fixture
def recall(workshop, run_command, monkeypatch):
    """Trains on a few documents of recall."""
    monkeypatch.setattr(sources, "TRAINING_DOCUMENTS", 50)
    monkeypatch.setattr(sources, "VALIDATION_DOCUMENTS", 10)
    return lambda *flags: run_command("train", "--data", "recall", *SMALL, *flags)


def test_a_task_of_other_sizes_is_named_for_them(recall, workshop):
    result = recall("--json", "--data", "recall:pairs=2,keys=3")
    assert json.loads(result.stdout.splitlines()[-1])["run"] == (
        "runs/recall-pairs-2-keys-3-standard"
    )


def test_a_task_needs_no_other_choice(recall, workshop):
    result = recall("--json")
    end = json.loads(result.stdout.splitlines()[-1])
    assert end["bits_per_byte"] is None
    assert end["above_floor"] == end["val_loss"]
    assert 0 <= end["accuracy"] <= 1
    assert end["run"] == "runs/recall-standard"
    config = json.loads((workshop / "runs" / "recall-standard" / "config.json").read_text())
    assert config["model"]["context_length"] == 33
    assert config["text"]["tokenizer"] == "symbols"


def test_people_read_the_share_of_right_answers(recall):
    result = recall()
    assert "% of answers right" in result.stderr
    assert "bits per byte" not in result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("best val loss")
    assert "nats per token above the floor: context 0.000, answer" in lines[1]
    assert lines[2].startswith("it writes: k")


def test_metrics_hold_the_accuracy(recall, workshop):
    recall()
    text = (workshop / "runs" / "recall-standard" / "metrics.jsonl").read_text()
    reports = [json.loads(line) for line in text.splitlines()]
    assert all(r["accuracy"] is not None for r in reports if r["event"] in ("eval", "end"))


def test_a_stopped_training_on_a_task_goes_on(recall, run_command):
    recall("--name", "whole", "--steps", "6")
    recall("--name", "parts")
    assert run_command("train", "--resume", "parts", "--steps", "6").exit_code == 0
    samples = [
        run_command("sample", name, "-p", "k1 v2 k1", "-m", "3", "--temp", "0").stdout
        for name in ("whole", "parts")
    ]
    assert samples[0].split()
    assert all(symbol[0] in "kv" for symbol in samples[0].split())


def test_a_word_that_is_no_symbol_is_refused_in_one_line(recall, run_command):
    recall()
    line = refused(run_command("sample", "recall-standard", "-p", "k1 hello"), 2)
    assert "no symbols of this task: 'hello'" in line


def test_a_converted_task_keeps_its_accuracy(recall, run_command):
    recall()
    result = run_command("convert", "recall-standard", "--to", "merged", "--json")
    record = json.loads(result.stdout)
    assert record["before"]["accuracy"] == record["after"]["accuracy"]
    assert record["before"]["bits_per_byte"] is None


def test_tasks_are_listed_with_what_they_separate(run_command, workshop):
    facts = {f["name"]: f for f in json.loads(run_command("data", "list", "--json").stdout)}
    for name, task in TASKS.items():
        assert facts[name]["separates"] == task.separates
        assert name in run_command("data").stdout


def test_a_task_is_described_with_its_floor(recall, run_command):
    facts = json.loads(run_command("data", "show", "copy", "--json").stdout)
    assert facts["floor_nats_per_token"] == pytest.approx(1.7054, abs=1e-4)
    assert facts["floor_bits_per_byte"] is None
    assert facts["scored_tokens"] == 10 * 63
