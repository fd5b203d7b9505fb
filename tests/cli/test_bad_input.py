"""What cannot work is one line on stderr and an exit code, and nothing is overwritten.

Here are the refusals of the command line, and one or two of each kind of the library's: the others
are tested where they are raised.
"""

import errno
import shlex
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from tests.cli.conftest import TINY_FLAGS, done, invoke, refused, settle
from tests.runs import STORY


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a story and a run, made once; tests change a copy of it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "story.txt").write_text(STORY)
    with pytest.MonkeyPatch.context() as monkeypatch:
        settle(folder, monkeypatch)
        done(invoke("train", *TINY_FLAGS, "--quiet", "--name=base"))
    return folder


FILES = {
    "capitals.txt": STORY.upper(),
    "cut.toml": "steps = ",
    "key.toml": "stepz = 3",
    "table.toml": "[modle]\nn_heads = 2",
    "delta.toml": 'delta = "5%"',
    "seeds.toml": "seeds = 9",
    "score.toml": 'score = "merged"',
}
"""Files that cannot be used, or not by every command."""


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> Path:
    """A finished run, in a folder with those files."""
    folder = settle(shutil.copytree(trained, tmp_path, dirs_exist_ok=True), monkeypatch)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    unsaved = shutil.ignore_patterns("checkpoint")
    shutil.copytree(folder / "runs" / "base", folder / "unsaved", ignore=unsaved)
    return folder / "runs" / "base"


def files_around(run: Path) -> dict[Path, bytes]:
    """Those of all runs, and of the folder that holds the texts and runs, with their content."""
    found = {*run.parents[1].iterdir(), *run.parent.rglob("*")}
    return {path: path.read_bytes() if path.is_file() else b"" for path in found}


REFUSALS = [
    ("trian", 2, "unknown command 'trian': did you mean 'train'? (see 'mlx-attn --help')"),
    ("cha", 2, "unknown command 'cha': did you mean 'chat'?"),
    ("--nope", 2, "No such option '--nope' (see 'mlx-attn --help')"),
    ("sample -p '#' --bogus", 2, "No such option '--bogus' (see 'mlx-attn sample --help')"),
    ("train --steps many", 2, "'--steps': 'many' is not a valid integer (see 'mlx-attn train"),
    ("train --data ''", 2, "names no file"),
    ("train --data the-verdct", 1, "no such file, folder or corpus: did you mean 'the-verdict'?"),
    ("train --data gone.txt", 1, "gone.txt: no such file, folder or corpus: put it there, or gi"),
    ("train --config none.toml", 1, "none.toml: cannot be read"),
    ("train --config cut.toml", 1, "cut.toml: cannot be read as TOML"),
    ("train --config key.toml", 2, "key.toml: unknown setting 'stepz': did you mean 'steps'?"),
    ("train --config table.toml", 2, "table.toml: unknown table [modle]: did you mean 'model'?"),
    ("MLX_ATTN_LR=fast train", 2, "'--lr' (or MLX_ATTN_LR): 'fast' is not a valid float"),
    ("MLX_ATTN_BATCHSIZE=3 train", 2, "MLX_ATTN_BATCHSIZE: did you mean MLX_ATTN_BATCH_SIZE"),
    ("train --batch-size 1000000 --emb-dim 4096", 2, "use fewer or narrower layers"),
    ("train --steps 0", 2, "nothing bounds the training"),
    ("train --tokenizer word", 2, "unknown tokenizer 'word': choose from char, byte, bpe, uni"),
    ("train --merge-qk --no-query", 2, "--merge-qk and --no-query do not combine: each says"),
    ("train merged", 2, "Got unexpected extra argument (merged): write --variant merged (see"),
    ("train # a model", 2, "; zsh passes comments on: 'setopt interactive_comments' ends that"),
    ("train story.txt", 2, "write --data story.txt"),
    ("compare --data -", 2, "every training reads the text, so it must be in a file"),
    ("compare standard merged", 2, "write --variants standard,merged"),
    ("verify all", 2, "Got unexpected extra argument (all) (see 'mlx-attn verify --help')"),
    ("sample 'the cat'", 2, "there is no run 'the cat': a text goes after --prompt"),
    ("train --variant cosine-tau", 2, "needs its file: --plugin FILE"),
    ("train --name ../x", 2, "--name is one name in runs/"),
    ("train --out a --name b", 2, "--out and --name both say where the run goes"),
    ("train --out runs/base", 1, "runs/base exists: train --resume runs/base continues it, "),
    ("train --out story.txt --overwrite", 1, "story.txt"),
    ("train --resume base --init-from base", 2, "leave out --out, --name, --config and --init-"),
    ("train --resume unsaved", 1, "no checkpoint: there is nothing to resume from; --init-from"),
    ("train --resume base --lr 1", 2, "lr=1.0 cannot change"),
    ("train --resume base --data capitals.txt", 1, "another text than capitals.txt holds"),
    ("train --init-from base --variant no-query", 2, "no start for score='no_query'"),
    ("train --init-from base --data capitals.txt", 1, "another vocabulary"),
    ("sample bas", 1, "there is no run 'bas', here or in runs: did you mean 'base'?"),
    ("sample -p -", 1, "not UTF-8 (invalid start byte at byte 1)"),
    ("repl base --stop=", 2, "a stop text is empty: give at least one character"),
    ("sample -n 5000", 2, "num_samples=5000 must be at least 1 and at most 4096"),
    ("convert base", 2, "--to FORM"),
    ("convert --to separate --rank x", 2, "write 8, or 1,2,4, or 1..128"),
    ("convert --to separate --rank 0..8", 2, "'0..8' has no rank of at least 1"),
    ("convert base --to merged -o data", 1, "exists"),
    ("convert base --to merged --out runs/../runs/base --overwrite", 2, "is the run that is conv"),
    ("loss base --data copy", 2, "only a model that was trained on this task reads it"),
    ("probe base --against base", 2, "add --track"),
    ("open base --html runs", 1, "runs: is there and is no file"),
    ("open base base base", 2, "two runs at most"),
    ("open base --html runs/base/model.safetensors", 1, "is not a page of this program"),
    ("open base --prompt=", 2, "the prompt is empty"),
    ("export base --to=gguf", 2, "unknown target 'gguf': choose from"),
    ("export base --to=mlx-lm --out runs", 1, "runs exists: --overwrite replaces it"),
    ("export base --to=mlx-lm --out runs --overwrite", 1, "runs was not written by export, so"),
    ("export base --to=mlx-lm --out story.txt --overwrite", 1, "is a file, and an export is a fol"),
    ("answers w_quer", 2, "unknown question 'w_quer': did you mean 'w-query'?"),
    ("runs nowhere", 1, "there is no such directory"),
    ("runs --sort los", 2, "did you mean 'loss'?"),
    ("bench --seconds=nan", 2, "Invalid value for '--seconds'"),
    ("bench --variants standard --n-heads 5", 2, "no variant is left to measure: standard: "),
    (f"bench --variants standard --context-length {2**63}", 2, "no variant is left to measure"),
    ("compare --scales 1,a", 2, "numbers between commas"),
    ("compare --data story.txt --variants standard,mla,path --exit-code", 2, "word on one arm"),
    ("compare --from story.txt --seeds 3", 2, "trains none: leave out --seeds"),
    ("compare --config=score.toml", 2, "score.toml: the arms or the comparison set score: leave"),
    ("compare --ideas --delta=5%", 2, "give --delta in nats"),
    ("compare --ideas --config=delta.toml", 2, "give --delta in nats"),
    ("compare --ideas --seeds=9", 2, "leave out --seeds"),
    ("compare --ideas --config=seeds.toml", 2, "seeds.toml: --ideas has a rule of its own"),
    ("MLX_ATTN_SEEDS=9 compare --ideas", 2, "the environment: --ideas has a rule of its own"),
    ("compare --on ray://a", 2, "a scheduler's address is like tcp://10.0.0.2:8786"),
    ("demo --variant standard", 2, "compares standard with another form: name that one"),
    ("data fetch the-verdct", 2, "unknown corpus 'the-verdct': did you mean 'the-verdict'?"),
    (f"data show story.txt --tokenizer {'x' * 1300}", 2, "x ...\n"),
]


@pytest.mark.parametrize(("line", "code", "message"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_what_cannot_work_is_one_line_and_changes_nothing(run_command, run, line, code, message):
    words = shlex.split(line)
    settings = dict(word.split("=") for word in words if word.startswith("MLX_ATTN_"))
    command, *arguments = words[len(settings) :]
    is_new = command == "train" and not {"--resume", "--init-from"} & {*arguments}
    before = files_around(run)
    flags = TINY_FLAGS if is_new else ()
    result = run_command(command, *flags, *arguments, env=settings, input=b"a\xff")
    assert message in refused(result, code)
    assert files_around(run) == before


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


def test_a_full_disk_is_one_line_and_keeps_the_old_checkpoint(train, run, run_command, monkeypatch):
    checkpoint = run / "checkpoint" / "last.safetensors"
    before, save = checkpoint.read_bytes(), mx.save_safetensors

    def full(file, *arguments):
        if "last" in file.name or "/.export" in file.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, *arguments)

    monkeypatch.setattr(mx, "save_safetensors", full)
    line = refused(train("--resume", "base", "--steps", "9", "--quiet"), 1)
    assert "cannot be written (No space left on device); free some space" in line
    assert checkpoint.read_bytes() == before
    refused(run_command("convert", "base", "--to", "merged", "--out", "new"), 1)
    line = refused(run_command("export", "base", "--to", "mlx-lm", "--out", "new/one"), 1)
    assert line.startswith("Error: new/one/model.safetensors: cannot be written (No space")
    assert not Path("new/one").exists()
