"""A probing task is trained, resumed, sampled and listed like any text."""

import json

import pytest

from mlx_attn.text import sources
from mlx_attn.text.tasks import TASKS

SMALL = ["--emb-dim=16", "--n-heads=2", "--n-layers=1", "--batch-size=4", "--steps=4"]
SMALL += ["--eval-every=2"]


@pytest.fixture
def recall(workshop, run_command, monkeypatch):
    """Trains on a few documents of recall."""
    monkeypatch.setattr(sources, "TRAINING_DOCUMENTS", 50)
    monkeypatch.setattr(sources, "VALIDATION_DOCUMENTS", 10)
    return lambda *flags: run_command("train", "--data", "recall", *SMALL, *flags)


def test_a_task_needs_no_other_choice_and_its_run_is_named_for_its_sizes(recall, workshop):
    lines = recall("--json", "--data", "recall:pairs=2,keys=3").stdout.splitlines()
    *_, validation, end = map(json.loads, lines)
    assert end["above_floor"] == end["val_loss"]
    assert None not in (validation["accuracy"], end["accuracy"])
    assert end["run"] == "runs/recall-pairs-2-keys-3-standard"
    config = json.loads((workshop / end["run"] / "config.json").read_text())
    assert config["model"]["context_length"] == 9


def test_tasks_are_listed_with_what_they_separate_and_described_with_their_floor(
    recall, run_command, workshop
):
    listed, told = run_command("data", "list", "--json").stdout, run_command("data").stdout
    separates = {f["name"]: f.get("separates") for f in json.loads(listed)}
    for name, task in TASKS.items():
        assert separates[name] == task.separates
        assert name in told
    facts = json.loads(run_command("data", "show", "copy", "--json").stdout)
    assert facts["floor_nats_per_token"] == pytest.approx(1.7054, abs=1e-4)
    assert facts["floor_bits_per_byte"] is None
    assert facts["scored_tokens"] == 10 * 63
