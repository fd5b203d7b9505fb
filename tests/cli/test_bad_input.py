"""What cannot work is one line on stderr and an exit code, and nothing is overwritten."""

import errno
import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import refused


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"", 1, "the text is empty"),
        (b"a", 1, "1 character is too few"),
        (b"a" * 500, 1, "every character is 'a'"),
        (b"\x00\x01\x02" * 100, 1, "not a text, byte 0 is NUL"),
        (b"\xff\xfe caf\xe9 " * 100, 1, "not UTF-8, byte 0 is 0xff"),
        (b"the cat sat on it", 1, "17 characters are too few"),
        (b"the cat sat on a mat", 2, "18 tokens to train on, too few for context_length=32"),
    ],
)
def test_texts_that_are_none(train, workshop, content, code, message):
    (workshop / "bad.txt").write_bytes(content)
    assert message in refused(train("--data", "bad.txt", "--context-length", "32"), code)
    assert not (workshop / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--n-heads", "3"], "emb_dim=16 must be a multiple of n_heads=3"),
        (["--n-heads", "0"], "n_heads=0 must be at least 1"),
        (["--context-length", "0"], "context_length=0 must be at least 1"),
        (["--n-layers", "0"], "n_layers=0 must be at least 1"),
        (["--emb-dim", "-16"], "emb_dim=-16 must be at least 1"),
        (["--drop-rate", "1.5"], "drop_rate=1.5 must be in [0, 1)"),
        (["--drop-rate", "nan"], "drop_rate=nan must be a finite number"),
        (["--scale", "inf"], "scale=inf must be a finite number"),
        (["--batch-size", "0"], "batch_size=0 must be at least 1"),
        (["--batch-size", "99999999999"], "batch_size=99999999999 must be at most 1048576"),
        (["--batch-size", "1000000", "--emb-dim", "4096"], "use fewer or narrower layers"),
        (["--n-layers", "4096", "--emb-dim", "65536"], "use fewer or narrower layers"),
        (["--accumulate", "10000000"], "accumulate=10000000 must be at most 1048576"),
        (["--n-layers", "99999999999"], "n_layers=99999999999 must be at most 4096"),
        (["--head-dim", "4294967296"], "head_dim=4294967296 must be at most 16777216"),
        (["--value-dim", "4294967296"], "value_dim=4294967296 must be at most 16777216"),
        (["--epochs", "1e308"], "epochs=1e+308 must be at most 1000000000"),
        (["--replicas", "4"], "--replicas is gone: use mlx-attn compare --seeds N"),
        (["--resume", "runs/x", "--replicas", "4"], "--replicas is gone"),
        (["--name", "../x"], "--name is one name in runs/"),
        (["--name", "a\x1bb"], "--name is one name in runs/"),
        (["--name", "n" * 300], "is too long: a name has at most 255 bytes"),
        (["--out", "~nobody-here/x"], "there is no such user"),
        (["--data", ""], "names no file"),
        (["--data", "x" * 5000], "is too long"),
        (["--data", "~nobody-here/x"], "there is no such user"),
        (["--init-from", "a\0b"], "names no file"),
        (["--config", "\ud800"], "holds bytes that are not UTF-8"),
        (["--out", "a\udcff"], "holds bytes that are not UTF-8: rename it"),
        (["--steps", "-1"], "steps=-1 must be at least 0"),
        (["--steps", "0"], "nothing bounds the training"),
        (["--minutes", "nan"], "minutes=nan must be a finite number"),
        (["--lr"], "Option '--lr' requires an argument"),
        (["--lr", "-1"], "lr=-1.0 must be at least 0"),
        (["--lr", "inf"], "lr=inf must be a finite number"),
        (
            ["--seed", "99999999999999999999"],
            "seed=99999999999999999999 must be at most 4294967295",
        ),
        (["--variant", "mergd"], "unknown variant 'mergd': did you mean 'merged'?"),
        (["--preset", "nanno"], "unknown preset 'nanno': did you mean 'nano'?"),
        (["--block", "modrn"], "unknown block 'modrn': did you mean 'modern'?"),
        (["--score", "x"], "score='x' must be one of separate, merged"),
        (["--optimizer", "sgd"], "optimizer='sgd' must be one of adamw, muon"),
        (["--tokenizer", "word"], "unknown tokenizer 'word': choose from char, byte"),
        (["--tokenizer", "bpe", "--vocab-size", "7"], "a vocabulary of 7 is not possible"),
        (["--out", "a", "--name", "b"], "--out and --name both say where the run goes"),
    ],
)
def test_settings_that_cannot_work(train, workshop, flags, message):
    assert message in refused(train(*flags), 2)
    assert not (workshop / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "many"], "'--steps': 'many' is not a valid integer"),
        (["--stepz", "3"], "No such option '--stepz'"),
        (["stray"], "Got unexpected extra argument (stray)"),
    ],
)
def test_wrong_usage_says_where_to_read_more(train, flags, message):
    line = refused(train(*flags), 2)
    assert message in line
    assert line.endswith(" train --help')\n")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MLX_ATTN_LR", "fast", "'--lr' (or MLX_ATTN_LR): 'fast' is not a valid float"),
        ("MLX_ATTN_BATCHSIZE", "3", "MLX_ATTN_BATCHSIZE: did you mean MLX_ATTN_BATCH_SIZE"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(train, variable, value, message):
    assert message in refused(train(env={variable: value}), 2)


@pytest.mark.parametrize(
    ("flag", "file", "message"),
    [
        (
            "--data",
            "the-verdct",
            "the-verdct: no such file, folder or corpus; did you mean the-verdict?",
        ),
        ("--config", "none.toml", "none.toml: cannot be read"),
    ],
)
def test_a_file_that_is_not_there_is_named(train, flag, file, message):
    assert message in refused(train(flag, file), 1)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"steps = ", 1, "bad.toml: cannot be read as TOML"),
        (b"\xff", 1, "bad.toml: cannot be read as TOML"),
        (b"stepz = 3", 2, "bad.toml: unknown setting 'stepz': did you mean 'steps'?"),
        (b"[modle]\nn_heads = 2", 2, "bad.toml: unknown table [modle]: did you mean 'model'?"),
        (b"steps = '3'", 2, "bad.toml: steps='3' must be a whole number"),
        (b"lr = nan", 2, "bad.toml: lr=nan must be a finite number"),
        (b"variant = 'merrged'", 2, "bad.toml: unknown variant 'merrged': did you mean 'merged'?"),
    ],
)
def test_bad_settings_files(train, workshop, content, code, message):
    (workshop / "bad.toml").write_bytes(content)
    assert message in refused(train("--config", "bad.toml"), code)


def test_a_file_in_place_of_the_run_directory(train, workshop):
    (workshop / "mine").write_text("a file")
    for flags in (["--out", "mine"], ["--out", "mine", "--overwrite"]):
        refused(train(*flags), 1)
    assert (workshop / "mine").read_text() == "a file"


def test_a_directory_that_is_no_run_is_not_overwritten(train, workshop):
    (workshop / "thesis").mkdir()
    (workshop / "thesis" / "chapter.txt").write_text("years of work")
    line = refused(train("--out", "thesis", "--overwrite"), 1)
    assert "thesis is not a run directory, so --overwrite leaves it alone" in line
    assert (workshop / "thesis" / "chapter.txt").exists()


def test_a_run_directory_that_cannot_be_made(train):
    line = train("--out", "story.txt/run").stderr.splitlines()[-1]
    assert line.startswith("Error: story.txt/run: cannot be written (Not a directory)")


def test_a_full_disk_is_one_line_and_keeps_the_old_checkpoint(train, run, monkeypatch):
    checkpoint = run / "checkpoint" / "last.safetensors"
    before = checkpoint.read_bytes()

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mlx.core.save_safetensors", full)
    result = train("--resume", "tiny-standard", "--steps", "9", "--quiet")
    line = refused(result, 1)
    assert "cannot be written (No space left on device); free some space" in line
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (["--lr", "1e30"], "at step 2, learning rate 1e+30"),
        (["--lr", "1e30"], "no checkpoint was saved yet"),
        (["--lr", "1e30"], "try a smaller --lr"),
        (["--scale", "1e30"], "try a --scale nearer to 1 / sqrt(head_dim), 0.35, than 1e+30"),
        (["--weight-decay", "1e8"], "try a smaller --weight-decay"),
    ],
)
def test_a_diverging_training_names_the_setting_to_blame(train, flags, advice):
    flags += ["--warmup", "0", "--quiet", "--optimizer", "adamw"]
    assert advice in refused(train(*flags), 1)


@pytest.fixture(scope="module")
def trained(made_once, tiny_flags) -> Path:
    return made_once(["train", *tiny_flags, "--quiet"])


@pytest.fixture
def run(trained, in_a_copy) -> Path:
    """A finished run."""
    return in_a_copy(trained) / "runs" / "tiny-standard"


def resumed(train):
    return train("--resume", "tiny-standard", "--steps", "9", "--quiet")


@pytest.mark.parametrize("where", ["nothing", "story.txt", "."])
def test_what_is_no_run_cannot_be_resumed(train, where):
    line = refused(train("--resume", where), 1)
    assert "not a run directory" in line or "there is no run" in line


@pytest.mark.parametrize(
    ("kept", "message"),
    [(0, "has no checkpoint: there is nothing to resume from"), (1000, "damaged or truncated")],
)
def test_a_run_whose_checkpoint_is_not_there_or_cut_short(train, run, kept, message):
    file = run / "checkpoint" / "last.safetensors"
    content = file.read_bytes()[:kept]
    file.write_bytes(content) if content else file.unlink()
    assert message in refused(resumed(train), 1)


def test_a_checkpoint_of_another_training(train, run):
    train("--seed", "7", "--out", "other", "--quiet")
    place = Path("checkpoint", "last.safetensors")
    (run / place).write_bytes(Path("other", place).read_bytes())
    line = refused(resumed(train), 1)
    assert "was saved with seed=7 and not with 0, which config.json says" in line


@pytest.mark.parametrize("change", [{"scale": 0.01}, {"context_length": None}])
def test_weights_of_another_config_json(run_command, run, change):
    settings = json.loads((run / "config.json").read_text())
    model = {**settings["model"], **change}
    settings["model"] = {key: value for key, value in model.items() if value is not None}
    (run / "config.json").write_text(json.dumps(settings))
    line = refused(run_command("sample", str(run)), 1)
    assert f"was saved with {next(iter(change))}=" in line


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("{", 1, "config.json: "),
        ("[]", 1, "config.json: "),
        ('{"model": {}}', 1, "config.json: "),
        ({"lr": "fast"}, 2, "config.json: lr='fast' must be a finite number"),
    ],
)
def test_a_damaged_config(train, run, content, code, message):
    if isinstance(content, dict):
        settings = json.loads((run / "config.json").read_text())
        content = json.dumps({**settings, "training": settings["training"] | content})
    (run / "config.json").write_text(content)
    assert message in refused(resumed(train), code)


@pytest.mark.parametrize(
    "flags", [["--out", "x"], ["--name", "x"], ["--overwrite"], ["--config", "x.toml"]]
)
def test_a_resumed_run_stays_where_it_is(train, run, flags):
    line = refused(train("--resume", "tiny-standard", *flags), 2)
    assert "--resume continues a run in place" in line


def test_a_run_of_stdin_asks_for_its_text_at_a_terminal(train, workshop, monkeypatch):
    train("--data", "-", "--quiet", input=(workshop / "story.txt").read_text())
    monkeypatch.setattr("mlx_attn.cli.train._at_terminal", lambda: True)
    line = refused(resumed(train), 1)
    assert "pipe the same text in again, or name a file that holds it with --data" in line


def test_a_run_in_a_folder_whose_name_is_not_utf8_says_so(train, workshop, run_command):
    train("--name=base")
    os.rename(b"runs/base", b"runs/a\xff")  # noqa: PTH104, no Path holds these bytes
    for command in (["sample"], ["convert", "--to=merged"], ["export", "--to=mlx-lm"], ["probe"]):
        assert "holds bytes that are not UTF-8" in refused(run_command(*command), 1)
    os.rename(b"runs/a\xff", b"runs/base")  # noqa: PTH104
    assert run_command("sample", "-m2").exit_code == 0


def test_a_link_to_nothing_is_named_before_anything_is_trained(train, workshop):
    (workshop / "link").symlink_to("gone")
    message = refused(train("--out=link"), 2)
    assert "link is a symbolic link to gone, where there is nothing" in message
