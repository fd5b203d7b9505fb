"""SentencePiece, made lossless."""

import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text import subwords
from mlx_attn.text.tokenizers import load_tokenizer, train_tokenizer

ROOTS = ["walk", "talk", "jump", "play", "look", "call", "help", "open", "turn", "paint"]
WORDS = [root + ending for root in ROOTS for ending in ("", "s", "ed", "ing", "er")]
TEXT = "\n".join(" ".join(random.Random(line).choices(WORDS, k=8)) for line in range(200))
TRAINED = ["bpe", "unigram"]


@pytest.mark.parametrize("kind", TRAINED)
def test_letters_that_do_not_fit_fall_back_on_bytes(kind):
    rng = random.Random(0)
    rare = "".join(chr(0x4E00 + rng.randrange(3000)) for _ in range(5000))
    tokenizer = train_tokenizer(kind, TEXT * 10 + rare, 400)
    assert tokenizer.vocab_size <= 400
    assert tokenizer.decode(tokenizer.encode(rare)) == rare
    assert len(tokenizer.encode(" walk talk jump")) == 3


def test_bpe_word_by_word_is_sentencepiece_on_the_whole_line(tmp_path):
    tokenizer = train_tokenizer("bpe", TEXT, 400)
    tokenizer.save(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in (TEXT, "  walk  talked, é 語\t\r\n open "):
        assert tokenizer.encode(text).tolist() == processor.encode(text)


def test_a_long_text_is_sampled_in_evenly_spread_passages(monkeypatch):
    monkeypatch.setattr(subwords, "SAMPLE", 640)
    text = "".join(f"{number:09}\n" for number in range(1_280))
    sample = subwords._sample(text)
    assert sample == "\n".join(text[200 * i : 200 * i + 10] for i in range(64))
    assert subwords._sample(sample) == sample


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize("size", [319, 65_537])
def test_impossible_vocabulary_sizes_are_refused_with_the_range(kind, size):
    with pytest.raises(ConfigError, match=rf"vocabulary of {size} .* 320 .* to 65536"):
        train_tokenizer(kind, TEXT, size)


OPTIONS = {"byte_fallback": True, "normalization_rule_name": "identity"}
WHOLE = {**OPTIONS, "remove_extra_whitespaces": False}
ACROSS = {**WHOLE, "split_by_whitespace": False}
NFKC = {**WHOLE, "normalization_rule_name": "nfkc"}
CHANGED = "a text does not come back"


def foreign_model(folder: Path, kind: str, **options: Any) -> Path:
    (folder / "words.txt").write_text(TEXT)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "words.txt"),
        model_prefix=str(folder / "theirs"),
        model_type=kind,
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return folder / "theirs.model"


@pytest.mark.parametrize("kind", TRAINED)
def test_a_model_of_another_program_keeps_its_ids_but_for_the_space_before_a_text(kind, tmp_path):
    path = foreign_model(tmp_path, kind, **WHOLE)
    tokenizer = load_tokenizer(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert tokenizer.kind == kind
    assert tokenizer.encode(" walk  talked é").tolist() == processor.encode("walk  talked é")
    tokenizer.save(tmp_path / "run")
    again = load_tokenizer(tmp_path / "run")
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert again.decode(again.encode(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "no bytes"), (OPTIONS, CHANGED), (NFKC, CHANGED), (ACROSS, "a space within")],
)
def test_a_model_that_loses_text_or_joins_words_is_refused(options, message, tmp_path):
    with pytest.raises(RunError, match=message):
        load_tokenizer(foreign_model(tmp_path, "bpe", **options))
    (tmp_path / "theirs.model").write_bytes(b"no model")
    with pytest.raises(RunError, match=r"theirs\.model: not a tokenizer"):
        load_tokenizer(tmp_path / "theirs.model")
