"""What a model is to read while it is probed: a prompt, or windows of its validation text."""

import numpy as np
from jaxtyping import Integer

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.runs import Run
from mlx_attn.text.corpus import prepare
from mlx_attn.text.downloads import Progress
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.settings import settings_from

LONGEST = 256
"""Tokens of a text at most: a map has their square, and more than this is no longer looked at."""

Tokens = Integer[np.ndarray, "B T"]


def prompt_tokens(text: str, tokenizer: Tokenizer, context_length: int) -> Tokens:
    """The last tokens of a text that fit into the context and into `LONGEST`, as one sequence.

    Raises:
        ConfigError: The text has a character that the tokenizer lacks, or fewer than two tokens.
    """
    tokens = tokenizer.encode(text)[-min(context_length, LONGEST) :]
    if len(tokens) < 2:
        raise ConfigError(
            f"the prompt is {len(tokens)} token{'s' * (len(tokens) != 1)} long, and a token alone "
            "looks at itself: give a prompt of at least two"
        )
    return tokens[None].astype(np.int64)


def validation_windows(run: Run, count: int, progress: Progress | None = None) -> Tokens:
    """At most `count` windows of the run's validation text, evenly spread, of `LONGEST` at most.

    Args:
        run: A trained run.
        count: How many windows.
        progress: Called with the bytes done and in all while a text is downloaded.

    Raises:
        RunError: The text is not what the run was trained on, or cannot be read.
        ConfigError: count is below 1.
    """
    if count < 1:
        raise ConfigError(f"windows={count} must be at least 1")
    text = settings_from(run.settings, {}).text
    if text.data == "-":
        raise RunError(f"{run.path} read its text from standard input: give a prompt")
    corpus = prepare(text.data, text.tokenizer, text.vocab_size, progress=progress)
    if corpus.digest != run.settings.get("digest"):
        raise RunError(
            f"{run.path} was trained on another text than {text.data} holds now: give a prompt"
        )
    return Evaluator(corpus.val, run.settings["model"]["context_length"]).texts(count)[:, :LONGEST]
