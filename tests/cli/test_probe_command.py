"""`mlx-attn probe` from the command line."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import invoke

SIZES = ["--n-layers=1", "--n-heads=2", "--head-dim=4", "--emb-dim=8", "--context-length=8"]
RECIPE = ["--data=story.txt", "--tokenizer=char", "--batch-size=2", "--steps=2", "--eval-every=0"]
BASE = ["train", *SIZES, *RECIPE, "--preset=nano", "--name=base", "--track=1", "--quiet"]
probe = partial(invoke, "probe")


@pytest.fixture(scope="module")
def one_run(made_once) -> Path:
    return made_once(BASE)


@pytest.fixture
def place(one_run, in_a_copy) -> Path:
    """A directory with a trained run, runs/base."""
    return in_a_copy(one_run)


def test_a_table_of_heads_or_json_goes_to_stdout(place):
    result = probe("base")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "1 layer of 2 heads: 2 attention maps per layer, 2 in all" in result.stdout
    record = json.loads(probe("--windows=3", "--json").stdout)
    assert record["run"] == "runs/base"
    assert (record["texts"], record["tokens"], len(record["heads"])) == (3, 8, 2)


@pytest.mark.parametrize(
    ("prompt", "typed", "tokens", "message"),
    [
        ("-", "the\n", 3, ""),
        ("the cat sat", None, 8, "the model reads the last 8 of 11 tokens: more do not fit\n"),
    ],
    ids=["from stdin", "beyond the context"],
)
def test_a_prompt_is_read_in_the_place_of_the_validation_text(
    place, prompt, typed, tokens, message
):
    (place / "story.txt").unlink()
    result = probe("base", "--prompt", prompt, "--json", input=typed)
    record = json.loads(result.stdout)
    assert (record["texts"], record["tokens"], result.stderr) == (1, tokens, message)
