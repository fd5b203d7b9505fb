"""Find example texts for a run, and the words of its training text."""

import re
from collections.abc import Iterator

import numpy as np
from jaxtyping import Integer

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.probe.heads import LONGEST, corpus_of
from mlx_attn.records import read_text
from mlx_attn.run_directory import Run
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.corpus import Split
from mlx_attn.text.downloads import Progress
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.evaluation import Evaluator

EXAMPLES = 3
EXAMPLE_TOKENS = 40

MOST_TOKENS = 4_000_000
"""Longest training text whose words are listed; longer texts contain nearly every word."""

MOST_WORDS = 30_000
"""Most words in a page."""

_WORD = re.compile(r"[^\W_]+")


def example_texts(run: Run, progress: Progress | None = None) -> list[str]:
    """Return beginnings of validation documents; else the run's last sample from training.

    `progress` is called with the bytes done and in all while a text is downloaded.
    """
    tokenizer = run.load_tokenizer()
    try:
        corpus = corpus_of(run, progress)
    except RunError:
        file = run.path / "samples.txt"
        samples = re.split(r"^--- step \d+$", read_text(file), flags=re.M) if file.exists() else []
        written = samples[-1].strip() if samples else ""
        return [_whole_words(tokenizer, tokenizer.encode(written)) if written else ""]
    passages = _passages(corpus.val, run.config.context_length)
    return [_whole_words(tokenizer, tokens) for tokens in passages]


def _passages(split: Split, context_length: int) -> Iterator[Integer[np.ndarray, " N"]]:
    """Yield beginnings of documents spread over the split; of windows for a plain text."""
    if split.document_starts is None:
        yield from Evaluator(split, context_length).texts(EXAMPLES)[:, :LONGEST]
        return
    ends = np.append(split.document_starts[1:], len(split.tokens))
    spread = np.unique(np.linspace(0, len(ends) - 1, EXAMPLES).astype(int))
    for start, end in zip(split.document_starts[spread], ends[spread], strict=True):
        yield split.tokens[start : min(end, start + LONGEST)]


def _whole_words(tokenizer: Tokenizer, tokens: Integer[np.ndarray, " N"]) -> str:
    """Return the text of the first tokens, without a last word that is cut off."""
    text = tokenizer.decode(tokens[:EXAMPLE_TOKENS])
    following = tokenizer.decode(tokens[EXAMPLE_TOKENS : EXAMPLE_TOKENS + 1])
    cut = text if not following or following[0].isspace() else re.sub(r"\s+\S*$", "", text)
    return cut.strip() or text


def training_words(run: Run, progress: Progress | None = None) -> list[str] | None:
    """Return the sorted words of the text that a run was trained on; None if unknown.

    They are unknown if the text is not recorded or can no longer be read, is a task without words,
    or has more than `MOST_TOKENS` tokens or `MOST_WORDS` words.
    """
    if not run.settings.get("corpus"):  # an imported model learned another text than it names
        return None
    try:
        corpus = corpus_of(run, progress)
    except (ConfigError, RunError):
        return None
    if isinstance(corpus.tokenizer, SymbolTokenizer) or len(corpus.train.tokens) > MOST_TOKENS:
        return None
    pieces = corpus.tokenizer.vocabulary
    text = b"".join(map(pieces.__getitem__, corpus.train.tokens.tolist()))
    words = set(_WORD.findall(text.decode("utf-8", "replace")))
    return sorted(words) if len(words) <= MOST_WORDS else None
