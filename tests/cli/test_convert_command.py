import json

import pytest
from click.testing import CliRunner, Result

from mlx_attn.cli.main import group
from mlx_attn.run_directory import open_run
from mlx_attn.text.corpus import prepare
from tests.cli.conftest import refused, untrained_run


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with one untrained run, runs/nano, and its text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the mat sat on the cat. " * 20)
    corpus = prepare("text.txt", "char")
    settings = {"text": {"data": "text.txt", "tokenizer": "char"}, "training": {"steps": 1}}
    path = tmp_path / "runs" / "nano"
    untrained_run(path, corpus.tokenizer, digest=corpus.digest, **settings)
    return tmp_path


def convert(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["convert", *arguments])


def test_the_new_run_and_what_changed_go_to_stdout_and_it_converts_further(place):
    result = convert("nano", "--to", "merged")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("runs/nano-merged\n")
    for fact in ("standard -> merged", "validation loss", "largest logit difference", "parameters"):
        assert fact in result.stdout
    assert open_run(place / "runs" / "nano-merged").load_model().config.score == "merged"
    back = convert("nano-merged", "--to", "separate", "--rank", "8", "--out", "back", "--json")
    assert json.loads(back.stdout)["logit_difference"] < 1e-5


def test_a_run_is_not_converted_onto_itself(place):
    before = {file: file.read_bytes() for file in (place / "runs" / "nano").iterdir()}
    out = "runs/../runs/nano"
    line = refused(convert("nano", "--to", "merged", "--out", out, "--overwrite"), 2)
    assert f"{out} is the run that is converted" in line
    assert {file: file.read_bytes() for file in (place / "runs" / "nano").iterdir()} == before
