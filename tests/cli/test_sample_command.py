import json
from functools import partial

import pytest

from mlx_attn.text.tokenizers import train_tokenizer
from tests.cli.conftest import invoke, refused, untrained_run

sample = partial(invoke, "sample")


@pytest.fixture
def place(workshop):
    """A directory with one untrained run, runs/7 b, of a few letters."""
    untrained_run(workshop / "runs" / "7 b", train_tokenizer("char", "abcdefgh \n", 0))
    return workshop


@pytest.mark.parametrize("run", [[], ["7 b"], ["runs/7 b"]])
def test_the_continuation_alone_goes_to_stdout(place, run):
    result = sample(*run, "--prompt", "abc", "--max-tokens", "30")
    assert (result.exit_code, result.stderr) == (0, "")
    assert len(result.stdout) == 30 + 1
    assert result.stdout.endswith("\n")


def test_json_is_one_object_with_the_seed_that_was_drawn(place):
    flags = ("-p", "-", "-m", "4", "--seed", "1", "--json")
    record = json.loads(sample(*flags, input="\ufeffa\nb\n").stdout)  # as from Windows
    assert (record["prompt"], len(record["text"]), record["tokens"]) == ("a\nb", 4, 4)
    assert (record["finish_reason"], record["seed"], record["run"]) == ("length", 1, "runs/7 b")
    assert record["tok_s"] > 0
    flags = ("-p", "abc", "--temp", "0.9", "--json", "-m", "30")
    record = json.loads(sample(*flags).stdout)
    again = json.loads(sample(*flags, "--seed", str(record["seed"])).stdout)
    assert again["text"] == record["text"]


def test_several_continuations_are_those_of_their_seeds(place):
    flags = ("-p", "abc", "-m", "30", "--temp", "1.5", "--ignore-eos")
    several = sample(*flags, "-n", "3", "--seed", "5").stdout.removesuffix("\n").split("\n---\n")
    alone = [sample(*flags, "--seed", str(5 + k)).stdout.removesuffix("\n") for k in range(3)]
    assert several == alone
    result = sample(*flags, "-m", "4", "-n", "3", "--seed", "1", "--json")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(record["seed"], record["tokens"]) for record in records] == [(1, 4), (2, 4), (3, 4)]


def test_a_prompt_that_does_not_fit_is_pointed_out(place):
    result = sample("-p", "a" * 20, "-m", "2")
    read = "the model read the last 8 of 20 prompt tokens: the prompt is longer than its context"
    assert result.stderr.startswith(f"{read} of 16, half of which is left free")


def test_the_tokenizer_of_another_model_is_refused(place):
    train_tokenizer("char", "abcdefgh \nijk", 0).save(place / "runs" / "7 b")
    line = refused(sample("7 b"), 1)
    assert "its tokenizer has 13 tokens and its model 10" in line
