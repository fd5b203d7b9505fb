"""Where an export goes: nothing of a user is lost, and nothing wrong stays."""

import hashlib
import json
from pathlib import Path

import pytest

from mlx_attn.errors import RunError
from mlx_attn.interop import targets
from mlx_attn.interop.targets import TARGETS, export_run


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_a_user_added_to_an_export_stays_when_it_is_exported_again(make_run, out):
    export_run(make_run(score="merged"), TARGETS["mlx-lm"], out)
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (out / "NOTES.md").write_text("what I did")
    (out.parent / "thesis.tex").write_text("years of work")
    listed = out / "mlx_attn" / "exported.json"  # a list from elsewhere may name anything
    digest = hashlib.sha256(b"years of work").hexdigest()
    more = {".git": "", "NOTES.md": "", "../thesis.tex": digest}
    listed.write_text(json.dumps({**json.loads(listed.read_text()), **more}))
    export_run(make_run(name="other"), TARGETS["gpt2"], out, overwrite=True)
    assert (out / ".git" / "HEAD").read_text() == "ref: refs/heads/main"
    assert (out / "NOTES.md").read_text() == "what I did"
    assert (out.parent / "thesis.tex").exists()
    assert not (out / "model.py").exists()  # of the first export, and nobody changed it
    assert not [*out.parent.glob(".export-*")]


@pytest.mark.parametrize("name", ["README.md", "mlx_attn/mine.txt"])
def test_a_file_that_a_user_changed_is_not_replaced(name, make_run, out):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    (out / name).write_bytes(b"mine")
    before = content(out)
    with pytest.raises(RunError, match=f"{name} was changed since the export, or is not of it"):
        export_run(loaded, TARGETS["gpt2"], out, overwrite=True)
    assert content(out) == before


def test_an_export_that_computes_something_else_is_removed(make_run, out, monkeypatch):
    loaded, weights = make_run(score="merged"), targets.named_arrays
    export_run(loaded, TARGETS["mlx-lm"], out)
    before = content(out)

    def wrong(model):
        arrays = weights(model)
        return {**arrays, "final_norm.weight": 0.5 * arrays["final_norm.weight"]}

    monkeypatch.setattr(targets, "named_arrays", wrong)
    with pytest.raises(RunError, match="it would not be this model: read back: largest logit"):
        export_run(loaded, TARGETS["mlx-lm"], out, overwrite=True)
    assert content(out) == before
    assert [path.name for path in out.parent.glob("*out*")] == ["out"]


def folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (folder, "was not written by export, so --overwrite leaves it alone"),
        (lambda path: path.write_text("years of work"), "is a file, and an export is a folder"),
    ],
)
def test_what_export_did_not_write_is_left_alone(put, reason, make_run, tmp_path):
    put(tmp_path / "theirs")
    before = content(tmp_path)
    with pytest.raises(RunError, match=reason):
        export_run(make_run(), TARGETS["gpt2"], tmp_path / "theirs", overwrite=True)
    assert {name: data for name, data in content(tmp_path).items() if name in before} == before


def test_an_earlier_export_is_replaced_only_on_request(make_run, out):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    with pytest.raises(RunError, match="--overwrite replaces it"):
        export_run(loaded, TARGETS["gpt2"], out)
    assert export_run(loaded, TARGETS["gpt2"], out, overwrite=True).path == out
