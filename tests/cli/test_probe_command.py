"""`mlx-attn probe` from the command line."""

import json
from functools import partial

import pytest

from tests.cli.conftest import invoke

probe = partial(invoke, "probe")
BEYOND = "the model reads the last 16 of 20 tokens: more do not fit\n"


def test_a_table_of_heads_or_json_goes_to_stdout(nano):
    result = probe("nano")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "1 layer of 2 heads: 2 attention maps per layer, 2 in all" in result.stdout
    record = json.loads(probe("--windows=3", "--json").stdout)
    assert record["run"] == "runs/nano"
    assert (record["texts"], record["tokens"], len(record["heads"])) == (3, 16, 2)


@pytest.mark.parametrize(
    ("prompt", "typed", "tokens", "message"),
    [
        ("-", "the\n", 3, ""),
        ("the cat sat on a mat", None, 16, BEYOND),
    ],
    ids=["from stdin", "beyond the context"],
)
def test_a_prompt_is_read_in_the_place_of_the_validation_text(nano, prompt, typed, tokens, message):
    (nano / "story.txt").unlink()
    result = probe("nano", "--prompt", prompt, "--json", input=typed)
    record = json.loads(result.stdout)
    assert (record["texts"], record["tokens"], result.stderr) == (1, tokens, message)
