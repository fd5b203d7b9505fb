import json
import math

import pytest

import mlx_attn
from mlx_attn.text.characters import ByteTokenizer
from tests.cli.conftest import done, refused, untrained_run


def test_the_loss_on_a_run_s_own_text_is_that_of_its_validation(train, run_command, workshop):
    done(train("--out", "mine"))
    records = map(json.loads, (workshop / "mine" / "metrics.jsonl").read_text().splitlines())
    losses = [record["val_loss"] for record in records if record.get("val_loss")]
    facts = json.loads(done(run_command("loss", "mine", "--json")))
    assert facts["loss"] == pytest.approx(min(losses), abs=1e-5)
    assert facts["text"] == "story.txt, its validation part"
    assert facts["perplexity"] == pytest.approx(math.exp(facts["loss"]))
    assert f"{facts['bits_per_byte']:.4g}" in run_command("loss", "mine").stdout


def test_any_text_is_read_whole_as_python_reads_it(run_command, workshop):
    untrained_run(workshop / "bytes", ByteTokenizer())
    text = "Zoë reads a text that is longer than the context.\r\n" * 3
    (workshop / "other.txt").write_text(text, newline="")
    facts = json.loads(done(run_command("loss", "bytes", "--data", "other.txt", "--json")))
    read = text.replace("\r\n", "\n")
    assert facts["tokens"] == len(read.encode()) - 1
    assert facts["loss"] == pytest.approx(mlx_attn.load("bytes").loss(read), abs=1e-6)
    nats = facts["loss"] * facts["tokens"]
    assert facts["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(read.encode()))


def test_an_import_reads_the_text_it_names_and_no_text_to_read_is_a_sentence(run_command, workshop):
    untrained_run(workshop / "bytes", ByteTokenizer(), corpus="standard input")
    assert "name one with --data" in refused(run_command("loss", "bytes"), 2)
    untrained_run(workshop / "imported", ByteTokenizer(), text={"data": "story.txt"})
    for named in ([], ["--data", "story.txt"], ["--data", "./story.txt"]):
        facts = json.loads(done(run_command("loss", "imported", *named, "--json")))
        assert facts["text"].endswith("story.txt, its validation part")
    (workshop / "story.txt").write_text("another text, which is longer than before")
    untrained_run(workshop / "old", ByteTokenizer(), corpus="story.txt", digest="0" * 32)
    assert "not the text that old was trained on" in refused(run_command("loss", "old"), 1)
