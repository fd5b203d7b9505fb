"""What cannot work is one line on stderr and an exit code, and nothing is overwritten.

Here are the refusals of the command line, and one or two of each kind of the library's: the others
are tested where they are raised.
"""

import errno
import json
from pathlib import Path

import pytest

from tests.cli.conftest import refused


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"a", 1, "1 character, too few"),
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
        (["--drop-rate", "nan"], "drop_rate=nan must be a finite number"),
        (["--batch-size", "1000000", "--emb-dim", "4096"], "use fewer or narrower layers"),
        (["--n-layers", "4096", "--emb-dim", "65536"], "use fewer or narrower layers"),
        (["--head-dim", "4294967296"], "head_dim=4294967296 must be at most 16777216"),
        (["--replicas", "4"], "--replicas is gone: use mlx-attn compare --seeds N"),
        (["--resume", "runs/x", "--replicas", "4"], "--replicas is gone"),
        (["--name", "../x"], "--name is one name in runs/"),
        (["--name", "a\x1bb"], "--name is one name in runs/"),
        (["--out", "~nobody-here/x"], "there is no such user"),
        (["--data", ""], "names no file"),
        (["--out", "a\udcff"], "holds bytes that are not UTF-8: rename it"),
        (["--steps", "0"], "nothing bounds the training"),
        (["--variant", "mergd"], "unknown variant 'mergd': did you mean 'merged'?"),
        (["--preset", "nanno"], "unknown preset 'nanno': did you mean 'nano'?"),
        (["--block", "modrn"], "unknown block 'modrn': did you mean 'modern'?"),
        (["--optimizer", "sgd"], "optimizer='sgd' must be one of adamw, muon"),
        (["--tokenizer", "word"], "unknown tokenizer 'word': choose from char, byte"),
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
        ("--data", "the-verdct", "no such file, folder or corpus: did you mean 'the-verdict'?"),
        ("--config", "none.toml", "none.toml: cannot be read"),
    ],
)
def test_a_file_that_is_not_there_is_named(train, flag, file, message):
    assert message in refused(train(flag, file), 1)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("steps = ", 1, "bad.toml: cannot be read as TOML"),
        ("x = " + "[" * 100_000, 1, "bad.toml: cannot be read as TOML"),
        ("steps = " + "9" * 5000, 1, "bad.toml: cannot be read as TOML"),
        ("stepz = 3", 2, "bad.toml: unknown setting 'stepz': did you mean 'steps'?"),
        ("[modle]\nn_heads = 2", 2, "bad.toml: unknown table [modle]: did you mean 'model'?"),
        ("variant = 'merrged'", 2, "bad.toml: unknown variant 'merrged': did you mean 'merged'?"),
    ],
    ids=["cut", "deep", "endless", "setting", "table", "variant"],
)
def test_bad_settings_files(train, workshop, content, code, message):
    (workshop / "bad.toml").write_text(content)
    assert message in refused(train("--config", "bad.toml"), code)


def test_a_place_that_is_no_run_is_not_overwritten(train, workshop):
    (workshop / "mine").write_text("a file")
    refused(train("--out", "mine", "--overwrite"), 1)
    assert (workshop / "mine").read_text() == "a file"
    (workshop / "thesis").mkdir()
    (workshop / "thesis" / "chapter.txt").write_text("years of work")
    line = refused(train("--out", "thesis", "--overwrite"), 1)
    assert "thesis is not a run directory, so --overwrite leaves it alone" in line
    assert (workshop / "thesis" / "chapter.txt").exists()
    line = train("--out", "story.txt/run").stderr.splitlines()[-1]
    assert line.startswith("Error: story.txt/run: cannot be written (Not a directory)")


def test_a_full_disk_is_one_line_and_keeps_the_old_checkpoint(train, run, monkeypatch):
    checkpoint = run / "checkpoint" / "last.safetensors"
    before = checkpoint.read_bytes()

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mlx.core.save_safetensors", full)
    line = refused(resumed(train), 1)
    assert "cannot be written (No space left on device); free some space" in line
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (["--lr", "1e30"], ["at step 2, learning rate 1e+30", "was saved yet", "a smaller --lr"]),
        (["--scale", "1e38"], ["try a --scale nearer to 1 / sqrt(head_dim), 0.35, than 1e+38"]),
        (["--weight-decay", "1e8"], ["try a smaller --weight-decay"]),
    ],
)
def test_a_diverging_training_names_the_setting_to_blame(train, flags, advice):
    line = refused(train(*flags, "--warmup=0", "--quiet", "--optimizer=adamw"), 1)
    assert all(words in line for words in advice)


@pytest.fixture(scope="module")
def trained(made_once, tiny_flags) -> Path:
    return made_once(["train", *tiny_flags, "--quiet"])


@pytest.fixture
def run(trained, in_a_copy) -> Path:
    """A finished run."""
    return in_a_copy(trained) / "runs" / "tiny-standard"


def resumed(train):
    return train("--resume", "tiny-standard", "--steps", "9", "--quiet")


@pytest.mark.parametrize(
    ("where", "message"), [("nothing", "there is no run"), (".", "not a run directory")]
)
def test_what_is_no_run_cannot_be_resumed(train, where, message):
    assert message in refused(train("--resume", where), 1)


@pytest.mark.parametrize(
    ("size", "message"),
    [(0, "has no checkpoint: there is nothing to resume from"), (1000, "damaged or truncated")],
)
def test_a_run_whose_checkpoint_is_not_there_or_cut_short(train, run, size, message):
    file = run / "checkpoint" / "last.safetensors"
    content = file.read_bytes()[:size]
    file.write_bytes(content) if content else file.unlink()
    assert message in refused(resumed(train), 1)


def test_a_checkpoint_of_another_training(train, run):
    train("--seed", "7", "--out", "other", "--quiet")
    place = Path("checkpoint", "last.safetensors")
    (run / place).write_bytes(Path("other", place).read_bytes())
    line = refused(resumed(train), 1)
    assert "was saved with seed=7 and not with 0, which config.json says" in line


def test_weights_of_another_config_json_and_a_damaged_one(run_command, train, run):
    file = run / "config.json"
    settings = json.loads(file.read_text())
    model, training = settings["model"] | {"scale": 0.01}, settings["training"] | {"lr": "fast"}
    file.write_text(json.dumps({**settings, "model": model}))
    assert "was saved with scale=" in refused(run_command("sample", str(run)), 1)
    file.write_text(json.dumps({**settings, "training": training}))
    assert "config.json: lr='fast' must be a finite number" in refused(resumed(train), 2)
    file.write_text('{"model": {}}')
    assert "config.json: " in refused(resumed(train), 1)


@pytest.mark.parametrize("flag", ["--name=x", "--overwrite", "--config=x.toml"])
def test_a_resumed_run_stays_where_it_is(train, run, flag):
    line = refused(train("--resume", "tiny-standard", flag), 2)
    assert "--resume continues a run in place" in line


def test_a_run_of_stdin_asks_for_its_text_at_a_terminal(train, workshop, monkeypatch):
    train("--data", "-", "--quiet", input=(workshop / "story.txt").read_text())
    monkeypatch.setattr("mlx_attn.cli.train._at_terminal", lambda: True)
    line = refused(resumed(train), 1)
    assert "pipe the same text in again, or name a file that holds it with --data" in line


@pytest.mark.parametrize("flag", ["--out", "--config", "--init-from"])
def test_a_path_that_links_to_itself_is_named(train, workshop, flag):
    (workshop / "loop").symlink_to("loop")
    line = refused(train(flag, "loop"), 2)
    assert "loop is a symbolic link to loop, where there is nothing" in line
