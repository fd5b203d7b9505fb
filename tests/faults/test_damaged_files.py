"""Every file of a run and of other programs, damaged: one line says what is wrong, or it reads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlx_attn.arrays import named_arrays, save_arrays
from mlx_attn.errors import ConfigError, RunError, printable
from mlx_attn.interop import names
from mlx_attn.interop.checkpoints import read_checkpoint
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.probe.tracking import save_snapshot, track_heads
from mlx_attn.probe.tracks import read_track
from mlx_attn.run_directory import open_run
from mlx_attn.text.corpus import prepare
from mlx_attn.training.config import resolve, settings_from
from mlx_attn.training.loop import train
from mlx_attn.training.recording import RunRecorder
from mlx_attn.training.summaries import summarise_runs
from mlx_attn.training.trainer import Trainer
from tests.runs import create_run

SIZES: dict[str, Any] = {"emb_dim": 8, "n_heads": 2, "n_layers": 1, "context_length": 8}
RECIPE = {"steps": 2, "eval_every": 1, "log_every": 1, "track": 1, "warmup": 0, "batch_size": 2}
TEXT = "the cat sat on the mat, and the dog sat by the door. " * 12


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a run that has a checkpoint, its text, and a model of the book."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text(TEXT)
    corpus = prepare(str(folder / "text.txt"), "bpe", 320, folder / "data")
    text = {"data": str(folder / "text.txt"), "tokenizer": "bpe", "vocab_size": 320}
    trainer = Trainer(resolve(SIZES, RECIPE, text), corpus)
    track_heads(trainer)
    record = trainer.settings.record(trainer.model.config, digest=corpus.digest)
    trainer.run = create_run(folder / "runs" / "one", record, tokenizer=corpus.tokenizer)
    recorder = RunRecorder(trainer, corpus.tokenizer)
    save_snapshot(trainer.run, trainer.model, 0)
    for event in train(trainer):
        recorder(event)
    theirs = GPT(GPTConfig(vocab_size=320, qkv_bias=True, tied_head=True, **SIZES))
    save_arrays(folder / "book.safetensors", names.to_book(named_arrays(theirs)), {})
    return folder


def read_run(folder: Path) -> None:
    """What sample, repl, probe and runs read."""
    summarise_runs(folder / "runs")
    run = open_run(folder / "runs" / "one")
    run.load_model()
    read_track(run)
    assert run.load_tokenizer().decode(run.load_tokenizer().encode("the cat")) == "the cat"


def resume(folder: Path) -> None:
    """What `train --resume` reads; damaged or not, the prepared text is the text."""
    run = open_run(folder / "runs" / "one")
    settings = settings_from(run.settings, {})
    settings = replace(settings, text=replace(settings.text, data=str(folder / "text.txt")))
    corpus = prepare(settings.text.data, settings.text.tokenizer, 320, folder / "data")
    assert corpus.tokenizer.decode([*corpus.train.tokens, *corpus.val.tokens]) == TEXT
    run.check_corpus(corpus, "")
    Trainer(settings, corpus, draw=False).resume(run)
    run.forget_after(1)


def read_foreign(name: str) -> Callable[[Path], object]:
    """What `import` reads of a file."""
    return lambda folder: read_checkpoint(folder / name, n_heads=2)


READERS: dict[str, Callable[[Path], object]] = {
    **dict.fromkeys(
        [f"runs/one/{name}" for name in ("config.json", "tokenizer.json", "tokenizer.model")]
        + ["runs/one/model.safetensors", "runs/one/metrics.jsonl"],
        read_run,
    ),
    **dict.fromkeys(
        ["runs/one/samples.txt", "runs/one/checkpoint/last.safetensors"]
        + ["runs/one/track/0.safetensors"]
        + [f"data/prepared/*/{name}" for name in ("corpus.json", "train.tokens.npy")]
        + [f"data/prepared/*/{name}" for name in ("tokenizer.json", "tokenizer.model")],
        resume,
    ),
    **{name: read_foreign(name) for name in ("book.safetensors",)},
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[: len(content) // 2],
    "another value": lambda content: content.replace(b"2", b"-7").replace(b"true", b"[]"),
    "endless": lambda content: b"[" * 100_000,
    "not text": lambda content: b"\xff\xfe" + content,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line_or_all_is_well(place, damage):
    whole = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    files = {name: next(place.glob(name)) for name in READERS}
    refused = []
    for name, file in files.items():
        file.write_bytes(DAMAGES[damage](whole[file]))
        try:
            READERS[name](place)
        except (RunError, ConfigError) as error:
            refused.append(printable(str(error)))
        except Exception as error:
            raise AssertionError(name) from error
        for path, content in whole.items():
            path.write_bytes(content)
    assert refused
    assert not [line for line in refused if "\n" in line]
