"""Where an export goes: nothing of a user is lost, and nothing wrong stays."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.interop import targets
from mlx_attn.interop.targets import TARGETS, export_run

pytestmark = pytest.mark.usefixtures("no_peers")

CODE = {"score": "merged"}
"""Settings of a model that is exported with code."""


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_a_user_added_to_an_export_stays_when_it_is_exported_again(make_run, out):
    loaded = make_run(**CODE)
    export_run(loaded, TARGETS["mlx-lm"], out)
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (out / "NOTES.md").write_text("what I did")
    (out / "modeling_mlx_attn.py").write_text("# changed")
    (out / "mlx_attn" / ".DS_Store").write_bytes(b"of the Finder")
    listed = out / "mlx_attn" / "exported.json"  # a list from elsewhere may name anything
    listed.write_text(json.dumps({**json.loads(listed.read_text()), ".git": "", "NOTES.md": ""}))
    export_run(make_run(name="other"), TARGETS["gpt2"], out, overwrite=True)
    assert (out / ".git" / "HEAD").read_text() == "ref: refs/heads/main"
    assert (out / "NOTES.md").read_text() == "what I did"
    assert (out / "modeling_mlx_attn.py").read_text() == "# changed"
    assert not (out / "mlx_attn" / ".DS_Store").exists()
    assert not (out / "model.py").exists()  # of the first export, and nobody changed it
    assert [path.name for path in out.parent.glob("*.replaced")] == []


@pytest.mark.parametrize("name", ["README.md", "mlx_attn/tokenizer.json", "mlx_attn/mine.txt"])
def test_a_file_that_a_user_changed_is_not_replaced(name, make_run, out):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    (out / name).write_bytes(b"mine")
    before = content(out)
    with pytest.raises(RunError, match=f"{name} was changed since the export, or is not of it"):
        export_run(loaded, TARGETS["gpt2"], out, overwrite=True)
    assert content(out) == before
    assert [path.name for path in out.parent.glob("*.replaced")] == []


@pytest.mark.parametrize("number", [float("nan"), 0.5])
def test_an_export_that_computes_something_else_is_removed(number, make_run, out, monkeypatch):
    loaded, weights = make_run(**CODE), targets.named_arrays
    export_run(loaded, TARGETS["mlx-lm"], out)
    before = content(out)

    def wrong(model):
        arrays = weights(model)
        return {**arrays, "final_norm.weight": number * arrays["final_norm.weight"]}

    monkeypatch.setattr(targets, "named_arrays", wrong)
    with pytest.raises(
        RunError, match="is not written, because it would not be this model"
    ) as told:
        export_run(loaded, TARGETS["mlx-lm"], out, overwrite=True)
    assert "largest logit difference" in str(told.value)
    assert content(out) == before
    assert [path.name for path in out.parent.glob("out*")] == ["out"]


FOLDER, TEXT, LINK, GGUF = "a folder", "a text", "a link to nothing", "a GGUF of another program"


def put(what: str, path: Path) -> None:
    match what:
        case "a folder":
            path.mkdir()
            (path / "thesis.tex").write_text("years of work")
        case "a text":
            path.write_text("years of work")
        case "a link to nothing":
            path.symlink_to("gone")
        case _:
            keys = ("general.architecture", "general.name", "general.type")
            facts: dict[str, Any] = dict.fromkeys(keys, "x")
            mx.save_gguf(str(path), {"token_embd.weight": mx.ones((2, 2))}, facts)


@pytest.mark.parametrize(
    ("to", "what", "reason"),
    [
        ("gpt2", FOLDER, "was not written by export, so --overwrite leaves it alone"),
        ("gguf", TEXT, "was not written by export"),
        ("book", TEXT, "was not written by export"),
        ("gguf", GGUF, "was not written by export"),
        ("gpt2", TEXT, "is a file, and this target is a folder"),
        ("gguf", FOLDER, "is a folder, and this target is one file"),
        ("gpt2", LINK, "is a symbolic link to gone, where"),
    ],
)
def test_what_export_did_not_write_is_left_alone(to, what, reason, make_run, tmp_path):
    theirs = tmp_path / "theirs.gguf"
    put(what, theirs)
    before = content(tmp_path)
    with pytest.raises((ConfigError, RunError), match=reason):
        export_run(make_run(), TARGETS[to], theirs, overwrite=True)
    assert {name: data for name, data in content(tmp_path).items() if name in before} == before


@pytest.mark.parametrize("to", ["gguf", "book", "gpt2"])
def test_an_earlier_export_is_replaced_only_on_request_also_behind_a_link(to, make_run, out):
    loaded, link = make_run(), out.with_name("link")
    export_run(loaded, TARGETS[to], out)
    link.symlink_to(out)
    with pytest.raises(RunError, match="--overwrite replaces it"):
        export_run(loaded, TARGETS[to], link)
    assert export_run(loaded, TARGETS[to], link, overwrite=True).path == link
    assert to != "gpt2" or link.is_symlink()


@pytest.mark.parametrize("place", [".", "..", "sub/.."])
def test_the_current_folder_and_its_parents_are_refused(place, make_run, tmp_path, monkeypatch):
    loaded, here = make_run(), tmp_path / "work" / "here"
    (here / "sub").mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises(RunError, match="is the folder that you are in, or a parent of it"):
        export_run(loaded, TARGETS["gpt2"], Path(place), overwrite=True)
