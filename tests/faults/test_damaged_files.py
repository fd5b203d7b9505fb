"""Every file that the program reads, damaged at random: one line says what is wrong, or it reads.

A case damages one file of a run, a prepared text, a conversation, a comparison, the study, or of
another program, and reads it as the commands do. How many cases there are is said in conftest.py.
"""

import copy
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.arrays import load_arrays, named_arrays, save_arrays
from mlx_attn.comparison.plan import Trial, make_trial
from mlx_attn.comparison.result import read_comparison
from mlx_attn.comparison.trial import Store, train_trial
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.interop import names
from mlx_attn.interop.folder import gpt2_config
from mlx_attn.interop.gguf import gguf_form, write_gguf
from mlx_attn.interop.imported import find_source
from mlx_attn.interop.tokenizer_json import read_tokenizer
from mlx_attn.interop.torch_archive import write_checkpoint
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.probe.tracks import read_track
from mlx_attn.repl.session import load_transcript
from mlx_attn.run_directory import create_run, open_run
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.corpus import prepare
from mlx_attn.text.sources import read_source
from mlx_attn.text.subwords import GPT2Tokenizer
from mlx_attn.text.tokenizers import Tokenizer, load_tokenizer, train_tokenizer
from mlx_attn.training.config import resolve, settings_from
from mlx_attn.training.loop import RunRecorder, train
from mlx_attn.training.summaries import summarise_runs
from mlx_attn.training.tracking import save_snapshot
from mlx_attn.training.trainer import Trainer
from mlx_attn_studies.book import RecordBook
from mlx_attn_studies.identities import read_checked
from mlx_attn_studies.registration import read_registration

SIZES = {"emb_dim": 8, "n_heads": 2, "n_layers": 1, "context_length": 8, "batch_size": 2}
RECIPE = {"steps": 2, "eval_every": 1, "log_every": 1, "track": 1, "warmup": 0}
TEXT = "the cat sat on the mat, and the dog sat by the door. " * 12

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, -1e308, float("inf"), float("nan")),
    *("", "x", "\ud800", "\0", "../..", "~nobody/x", "\x1b]0;title\x07", "9" * 5000, "a" * 5000),
    *([], {}, [[]], {"x": {}}, [1, "2", None], {"": 0}),
)
"""Values that a record may hold in place of its own."""


ANSWERS = Path(__file__).parents[2] / "docs" / "answers"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with one of every file: a run with a checkpoint, its text, a talk, a comparison."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text(TEXT)
    corpus = prepare(str(folder / "text.txt"), "bpe", 320, folder / "data")
    text = {"data": str(folder / "text.txt"), "tokenizer": "bpe", "vocab_size": 320}
    trainer = Trainer(resolve(SIZES, RECIPE, text), corpus)
    record = trainer.settings.record(trainer.model.config, digest=corpus.digest)
    trainer.run = create_run(folder / "runs" / "one", record, tokenizer=corpus.tokenizer)
    recorder = RunRecorder(trainer, corpus.tokenizer)
    save_snapshot(trainer.run, trainer.model, 0)
    for event in train(trainer):
        recorder(event)
    turn = {"prompt": "the", "answers": [{"run": "one", "seed": 1, "text": " cat", "tokens": 1}]}
    (folder / "talk.json").write_text(json.dumps({"turns": [turn]}))
    write_tokenizers(folder / "tokenizers")
    write_foreign_files(folder / "theirs", corpus.tokenizer)
    write_study(folder / "answers")
    prepare(*STORIES, folder / "stories", *STORY_BYTES)
    comparison = {"name": "c", "question": "?", "budgets": [], "tunings": [], "text": {}}
    (folder / "comparison.json").write_text(json.dumps(comparison))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MLX_ATTN_DATA_DIR", str(folder / "data"))
        trial = trial_in(folder)
        if outcome := train_trial(trial):
            Store(folder / "trials")[trial] = outcome
    return folder


STORIES, STORY_BYTES = ("tales", "char", 0), (3000, 800)
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "char": lambda: train_tokenizer("char", TEXT),
    "byte": lambda: train_tokenizer("byte", TEXT),
    "symbols": lambda: SymbolTokenizer(["the", "cat"]),
    "gpt2": lambda: GPT2Tokenizer("t h\nth e\nc a\n"),
    "unigram": lambda: train_tokenizer("unigram", TEXT, 320),
}


def trial_in(folder: Path) -> Trial:
    """A training of a comparison."""
    text = {"data": str(folder / "text.txt"), "tokenizer": "bpe", "vocab_size": 320}
    settings = resolve(SIZES, RECIPE, text)
    return make_trial("standard", settings, 0, 1.0, read_source(text["data"], folder).digest)


def write_tokenizers(folder: Path) -> None:
    for name, make in KINDS.items():
        make().save(folder / name)


def write_study(folder: Path) -> None:
    """The study's registration, some of its records, and what its checks found."""
    (folder / "records").mkdir(parents=True)
    for name in ("registration.json", "identities.json"):
        shutil.copy(ANSWERS / name, folder / name)
    lines = (ANSWERS / "records" / "tales.jsonl").read_text().splitlines(keepends=True)
    (folder / "records" / "tales.jsonl").write_text("".join(lines[:3]))


def write_foreign_files(folder: Path, tokenizer: Tokenizer) -> None:
    """A state dict of the book, a GGUF file and GPT-2's folder, as other programs leave them."""
    (folder / "gpt2").mkdir(parents=True)
    sizes: dict[str, Any] = {"context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
    config = GPTConfig(vocab_size=tokenizer.vocab_size, qkv_bias=True, tied_head=True, **sizes)
    model = GPT(config)
    arrays = named_arrays(model)
    write_checkpoint(folder / "book.pth", names.to_book(arrays))
    write_gguf(folder / "model.gguf", *gguf_form(model), tokenizer, "theirs")
    (folder / "gpt2" / "config.json").write_text(json.dumps(gpt2_config(config)))
    save_arrays(folder / "gpt2" / "model.safetensors", names.to_gpt2(arrays), {})
    (folder / "gpt2" / "merges.txt").write_text("a b\nab c\n")
    save_arrays(folder / "book.safetensors", names.to_book(arrays), {})
    (folder / "bpe").mkdir()
    model = {"type": "BPE", "merges": ["a b", ["ab", "c"]]}
    theirs = {"model": model, "pre_tokenizer": {"type": "ByteLevel"}}
    (folder / "bpe" / "tokenizer.json").write_text(json.dumps(theirs))


def read_foreign(name: str) -> Callable[[Path], Any]:
    """What `import` reads of a file or a folder."""

    def read(folder: Path) -> None:
        source = find_source(str(folder / "theirs" / name), n_heads=2)
        read_tokenizer(source.path if source.path.is_dir() else source.path.parent)
        source.load()

    return read


def read_run(folder: Path) -> None:
    """What sample, repl, probe and runs read."""
    summarise_runs(folder / "runs")
    run = open_run(folder / "runs" / "one")
    run.load_model()
    tokenizer = run.load_tokenizer()
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"


def read_track_of_run(folder: Path) -> None:
    read_track(open_run(folder / "runs" / "one"))


def read_corpus(folder: Path) -> None:
    """Damaged or not, the prepared text is the text."""
    corpus = prepare(str(folder / "text.txt"), "bpe", 320, folder / "data")
    tokens = [*corpus.train.tokens, *corpus.val.tokens]
    assert corpus.tokenizer.decode(tokens) == TEXT


def resume(folder: Path) -> None:
    """What `train --resume` reads."""
    run = open_run(folder / "runs" / "one")
    settings = settings_from(run.settings, {})
    settings = replace(settings, text=replace(settings.text, data=str(folder / "text.txt")))
    corpus = prepare(settings.text.data, settings.text.tokenizer, 320, folder / "data")
    run.check_corpus(corpus, "")
    Trainer(settings, corpus, draw=False).resume(run)
    run.forget_after(1)


def read_own_tokenizer(kind: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> None:
        tokenizer = load_tokenizer(folder / "tokenizers" / kind)
        assert tokenizer.decode(range(tokenizer.vocab_size)) is not None

    return read


def read_stories(folder: Path) -> None:
    """Damaged or not, stories are prepared with their beginnings."""
    corpus = prepare(*STORIES, folder / "stories", *STORY_BYTES)
    assert corpus.train.document_starts is not None
    newline = int(corpus.tokenizer.encode("\n")[0])
    assert (corpus.train.tokens[corpus.train.document_starts] == newline).all()


def read_text_of_user(folder: Path) -> None:
    read_source(str(folder / "text.txt"), folder).splits()


READERS: dict[str, Callable[[Path], Any]] = {
    "runs/one/config.json": read_run,
    "runs/one/tokenizer.json": read_run,
    "runs/one/tokenizer.model": read_run,
    "runs/one/model.safetensors": read_run,
    "runs/one/metrics.jsonl": read_track_of_run,
    "runs/one/samples.txt": resume,
    "runs/one/checkpoint/last.safetensors": resume,
    "data/prepared/*/corpus.json": read_corpus,
    "data/prepared/*/train.tokens.bin": read_corpus,
    "data/prepared/*/val.tokens.bin": read_corpus,
    "data/prepared/*/tokenizer.json": read_corpus,
    "data/prepared/*/tokenizer.model": read_corpus,
    "theirs/book.pth": read_foreign("book.pth"),
    "theirs/model.gguf": read_foreign("model.gguf"),
    "theirs/gpt2/config.json": read_foreign("gpt2"),
    "theirs/gpt2/model.safetensors": read_foreign("gpt2"),
    "theirs/gpt2/merges.txt": read_foreign("gpt2"),
    "theirs/book.safetensors": read_foreign("book.safetensors"),
    "theirs/bpe/tokenizer.json": lambda folder: read_tokenizer(folder / "theirs" / "bpe"),
    "runs/one/track/0.safetensors": resume,
    "tokenizers/char/tokenizer.json": read_own_tokenizer("char"),
    "tokenizers/byte/tokenizer.json": read_own_tokenizer("byte"),
    "tokenizers/symbols/tokenizer.json": read_own_tokenizer("symbols"),
    "tokenizers/gpt2/tokenizer.json": read_own_tokenizer("gpt2"),
    "tokenizers/gpt2/tokenizer.bpe": read_own_tokenizer("gpt2"),
    "tokenizers/unigram/tokenizer.model": read_own_tokenizer("unigram"),
    "stories/prepared/*/train.document_starts.bin": read_stories,
    "stories/prepared/*/val.token_abilities.bin": read_stories,
    "stories/prepared/*/corpus.json": read_stories,
    "text.txt": read_text_of_user,
    "trials/*.json": lambda folder: Store(folder / "trials")[trial_in(folder)],
    "answers/registration.json": lambda folder: read_registration(folder / "answers"),
    "answers/identities.json": lambda folder: read_checked(folder / "answers"),
    "answers/records/tales.jsonl": lambda folder: RecordBook(folder / "answers" / "records"),
    "talk.json": lambda folder: load_transcript(folder / "talk.json"),
    "comparison.json": read_comparison,
}


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """A file cut short, with a flipped bit, a lost or foreign block, or something else entirely."""
    at = draw.randrange(len(content) + 1)
    match draw.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]
        case 2:
            return content[:at] + draw.randbytes(16) + content[at + 16 :]
        case 3:
            return content[:at] + content[at:][::-1]
        case 4:
            return draw.choice([b"", b"null", b"[" * 100_000, b"\xff\xfe", b"9" * 5000, b'{"a":'])
    flipped = bytearray(content or b"x")
    flipped[at % len(flipped)] ^= 1 << draw.randrange(8)
    return bytes(flipped)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value with each of its keys."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places_in(value[key])


def with_odd_value(record: Any, draw: random.Random) -> Any:
    """A record one of whose values is odd, or lacks, or has a strange neighbour."""
    record = copy.deepcopy(record)
    container, key = draw.choice([*places_in(record)] or [([record], 0)])
    if draw.random() < 0.15:
        del container[key]
    elif isinstance(container, dict) and draw.random() < 0.1:
        container |= {"unknown\x1b": draw.choice(ODD)}
    else:
        container[key] = draw.choice(ODD)
    return record


def damage(file: Path, draw: random.Random) -> None:
    """Damage a file: its bytes, or where it holds records, one value of one of them."""
    content = file.read_bytes()
    if file.suffix == ".safetensors" and draw.random() < 0.5:
        arrays, facts = load_arrays(file)
        if "progress" in facts and draw.random() < 0.7:
            progress = with_odd_value(json.loads(facts["progress"]), draw)
            facts["progress"] = json.dumps(progress)
        else:
            name = draw.choice(sorted(arrays))
            array = arrays.pop(name)
            odd = [array[None], array.astype(mx.int32), array.astype(mx.float16), array * mx.nan]
            arrays |= {draw.choice([name, "x"]): draw.choice(odd)} if draw.random() < 0.8 else {}
        save_arrays(file, arrays, facts)
    elif file.suffix in (".json", ".jsonl") and draw.random() < 0.8:
        lines = content.decode().splitlines() if file.suffix == ".jsonl" else [content.decode()]
        at = draw.randrange(len(lines))
        lines[at] = json.dumps(with_odd_value(json.loads(lines[at]), draw))
        file.write_text("\n".join(lines) + "\n")
    else:
        file.write_bytes(damaged_bytes(content, draw))


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_is_one_line_or_all_is_well(
    fuzz: Callable[[Callable[[random.Random], Any]], Counter[str]], place, monkeypatch
):
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(place / "data"))
    files = [(file, reader) for name, reader in READERS.items() for file in place.glob(name)]
    assert len(files) == len(READERS)
    whole = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}

    def one_case(draw: random.Random) -> None:
        file, reader = draw.choice(files)
        try:
            damage(file, draw)
            reader(place)
        except (RunError, ConfigError):
            raise
        except Exception as error:
            raise AssertionError(file.relative_to(place)) from error
        finally:
            for path, content in whole.items():
                if not path.exists() or path.read_bytes() != content:
                    path.write_bytes(content)

    found = fuzz(one_case)
    assert found["refused"] > found.total() / 4
    assert found["answered"] > found.total() / 20


@pytest.mark.parametrize("at", [8, 16, 24])
def test_lengths_that_lead_out_of_a_gguf_file_are_refused(place, at):
    file = place / "theirs" / "model.gguf"
    whole = file.read_bytes()
    file.write_bytes(whole[:at] + (2**60).to_bytes(8, "little") + whole[at + 8 :])
    with pytest.raises(RunError, match="cannot be read as GGUF"):
        find_source(str(file))
    file.write_bytes(whole)
