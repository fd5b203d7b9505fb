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


def test_what_is_there_is_replaced_only_on_request(make_run, out):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    with pytest.raises(RunError, match="--overwrite replaces it"):
        export_run(loaded, TARGETS["gpt2"], out)
    assert export_run(loaded, TARGETS["gpt2"], out, overwrite=True).path == out


def a_clone(folder: Path) -> None:
    (folder / "mlx_attn").mkdir(parents=True)
    (folder / "mlx_attn" / "__init__.py").write_text("")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main")


def a_thesis(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")


def a_model_of_somebody(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    (folder / "model.safetensors").write_bytes(b"weights")


@pytest.mark.parametrize("make", [a_clone, a_thesis, a_model_of_somebody])
def test_a_folder_that_export_did_not_write_is_left_alone(make, make_run, out):
    make(out)
    before = content(out)
    with pytest.raises(RunError, match="was not written by export, so --overwrite leaves it alone"):
        export_run(make_run(), TARGETS["mlx-lm"], out, overwrite=True)
    assert content(out) == before


def test_what_a_user_added_to_an_export_stays_when_it_is_exported_again(make_run, out):
    loaded = make_run(**CODE)
    export_run(loaded, TARGETS["mlx-lm"], out)
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (out / "NOTES.md").write_text("what I did")
    (out / "adapters").mkdir()
    (out / "adapters" / "adapters.safetensors").write_bytes(b"lora")
    export_run(make_run(name="other"), TARGETS["gpt2"], out, overwrite=True)
    assert (out / ".git" / "HEAD").read_text() == "ref: refs/heads/main"
    assert (out / "NOTES.md").read_text() == "what I did"
    assert (out / "adapters" / "adapters.safetensors").read_bytes() == b"lora"
    assert not (out / "model.py").exists()  # of the first export, and nobody changed it
    assert [path.name for path in out.parent.glob("*.replaced")] == []


@pytest.mark.parametrize(
    "name", ["README.md", "model.safetensors", "mlx_attn/tokenizer.json", "mlx_attn/mine.txt"]
)
def test_a_file_that_a_user_changed_is_not_replaced(name, make_run, out):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    (out / name).write_bytes(b"mine")
    before = content(out)
    with pytest.raises(RunError, match=f"{name} was changed since the export, or is not of it"):
        export_run(loaded, TARGETS["gpt2"], out, overwrite=True)
    assert content(out) == before
    assert [path.name for path in out.parent.glob("*.replaced")] == []


def test_a_file_that_the_new_export_does_not_write_stays_if_a_user_changed_it(make_run, out):
    export_run(make_run(**CODE), TARGETS["mlx-lm"], out)
    (out / "model.py").write_text("# mine")
    export_run(make_run(name="other"), TARGETS["gpt2"], out, overwrite=True)
    assert (out / "model.py").read_text() == "# mine"


def test_a_list_from_elsewhere_cannot_name_a_folder(make_run, out):
    export_run(make_run(), TARGETS["gpt2"], out)
    (out / ".git").mkdir()
    listed = out / "mlx_attn" / "exported.json"
    listed.write_text(json.dumps({**json.loads(listed.read_text()), ".git": ""}))
    export_run(make_run(name="other"), TARGETS["gpt2"], out, overwrite=True)
    assert (out / ".git").is_dir()


def test_what_the_finder_leaves_in_the_folder_of_the_tokenizer_is_no_obstacle(make_run, out):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    (out / "mlx_attn" / ".DS_Store").write_bytes(b"view")
    export_run(loaded, TARGETS["gpt2"], out, overwrite=True)
    assert not (out / "mlx_attn" / ".DS_Store").exists()


@pytest.mark.parametrize("place", [".", "..", "/", "sub/..", "earlier"])
def test_the_current_folder_and_its_parents_are_refused(place, make_run, tmp_path, monkeypatch):
    loaded, here = make_run(), tmp_path / "work" / "here"
    (here / "sub").mkdir(parents=True)
    earlier = tmp_path / "work" / "earlier"
    export_run(loaded, TARGETS["gpt2"], earlier)
    monkeypatch.chdir(earlier if place == "earlier" else here)
    out = earlier if place == "earlier" else Path(place)
    with pytest.raises(RunError, match="is the folder that you are in, or a parent of it") as told:
        export_run(loaded, TARGETS["gpt2"], out, overwrite=True)
    assert "\n" not in str(told.value)


def test_an_export_behind_a_link_is_replaced_and_the_link_stays(make_run, out, tmp_path):
    loaded, link = make_run(), tmp_path / "link"
    export_run(loaded, TARGETS["gpt2"], out)
    link.symlink_to(out)
    export_run(loaded, TARGETS["gpt2"], link, overwrite=True)
    assert link.is_symlink()
    assert (link / "model.safetensors").is_file()


@pytest.mark.parametrize("to", ["gpt2", "gguf"])
def test_a_link_to_nothing_is_named(to, make_run, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(
        ConfigError, match=r"link is a symbolic link to .*gone, where there is noth"
    ):
        export_run(make_run(), TARGETS[to], link)
    assert link.is_symlink()


def a_gguf_of_another_program(path: Path) -> None:
    names = ("general.architecture", "general.name", "general.type")
    facts: dict[str, Any] = dict(zip(names, ("gpt2", "x", "model"), strict=True))
    mx.save_gguf(str(path), {"token_embd.weight": mx.ones((2, 2))}, facts)


@pytest.mark.parametrize(
    ("to", "make"),
    [
        ("gguf", lambda path: path.write_text("years of work")),
        ("book", lambda path: path.write_text("years of work")),
        ("gguf", a_gguf_of_another_program),
    ],
)
def test_a_file_replaces_only_one_of_its_own_kind(to, make, make_run, tmp_path):
    loaded, theirs = make_run(), tmp_path / "theirs.gguf"
    make(theirs)
    before = theirs.read_bytes()
    with pytest.raises(RunError, match="was not written by export"):
        export_run(loaded, TARGETS[to], theirs, overwrite=True)
    assert theirs.read_bytes() == before
    for _ in range(2):
        export_run(loaded, TARGETS[to], tmp_path / "exported", overwrite=True)


def test_a_folder_is_no_place_for_a_file_nor_a_file_for_a_folder(make_run, tmp_path):
    loaded = make_run()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="file is a file, and this target is a folder"):
        export_run(loaded, TARGETS["gpt2"], tmp_path / "file", overwrite=True)
    with pytest.raises(RunError, match="folder is a folder, and this target is one file"):
        export_run(loaded, TARGETS["gguf"], tmp_path / "folder", overwrite=True)


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


def test_a_file_that_computes_something_else_does_not_replace_an_earlier_one(
    make_run, tmp_path, monkeypatch
):
    loaded, out = make_run(), tmp_path / "model.gguf"
    export_run(loaded, TARGETS["gguf"], out)
    before = out.read_bytes()
    monkeypatch.setattr("mlx_attn.interop.parity.FAR", -1.0)
    with pytest.raises(RunError, match="is not written"):
        export_run(loaded, TARGETS["gguf"], out, overwrite=True)
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.glob("*gguf*")) == ["model.gguf"]


def test_an_interruption_leaves_the_earlier_export(make_run, out, monkeypatch):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    before = content(out)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("mlx_attn.interop.targets.write_card", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_run(loaded, TARGETS["gpt2"], out, overwrite=True)
    assert content(out) == before
    assert [path.name for path in out.parent.glob("*.replaced")] == []


def test_a_file_of_the_user_that_cannot_be_moved_is_still_there(make_run, out, monkeypatch):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    (out / "NOTES.md").write_text("what I did")
    rename = Path.rename

    def refuse(self, target):
        if self.name == "NOTES.md":
            raise PermissionError(13, "Permission denied", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(RunError, match=r"out-.*\.replaced: cannot be written") as told:
        export_run(loaded, TARGETS["gpt2"], out, overwrite=True)
    (old,) = out.parent.glob("*.replaced")
    assert str(old) in str(told.value)
    assert (old / "NOTES.md").read_text() == "what I did"
