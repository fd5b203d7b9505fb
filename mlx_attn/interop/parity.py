"""Load an exported model in other programs, and compare it with the original."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import RunError
from mlx_attn.interop import peer
from mlx_attn.model.gpt import GPT
from mlx_attn.text.tokenizers import Tokenizer

PEERS_PYTHON = "MLX_ATTN_PEERS_PYTHON"
"""Environment variable with a Python that has the other programs, such as mlx-lm and torch."""

WINDOW = 64
"""Tokens whose logits are compared, at most."""

GREEDY = 100
"""Greedy tokens that are compared, at most."""

FAR = 0.01
"""Largest difference between two programs, as a share of the largest logit.

Rounding stays below it: 1e-5 in float32, 4e-4 with llama.cpp's GELU from a float16 table (both
measured); TF32 rounds each factor of a product by up to 5e-4. A wrong formula exceeds it by far.
"""

_PACKAGES = {
    "torch": ("torch",),
    "mlx": ("mlx",),
    "mlx-lm": ("mlx_lm",),
    "transformers": ("transformers", "torch"),  # mlx-lm brings it without PyTorch
    "transformer-lens": ("transformer_lens",),
    "llama.cpp": ("llama_cpp",),
}

_Logits = Float[np.ndarray, "T V"]
_Tokens = Integer[np.ndarray, " T"]


@dataclass(frozen=True, slots=True)
class Parity:
    """How far two programs agree on one model."""

    logit_difference: float  # the largest absolute one over the window
    largest_logit: float  # the largest absolute one there
    tokens: int  # length of the window
    greedy_equal: int  # equal greedy tokens, generated after a quarter of the window
    greedy: int  # greedy tokens
    by: str  # the program that loaded the model
    # "equal" if its tokenizer gives a text the same ids, else the first difference or the reason
    # why it could not read the text; "" if the ids were not compared.
    text_ids: str = ""

    def check(self, place: str) -> None:
        """Refuse an export that computes something else in another program.

        Raises:
            RunError: A logit is not finite, or differs by more than `FAR` of the largest.
        """
        if not self.logit_difference <= FAR * max(1, self.largest_logit):
            raise RunError(
                f"{place} is not written, because it would not be this model: {self.line}; at most "
                f"{FAR:g} of the largest logit is rounding. 'mlx-attn verify' shows whether this "
                "machine computes right"
            )

    def check_text(self, place: str) -> None:
        """Refuse a tokenizer that gives a text other ids in another program.

        Raises:
            RunError: The ids differ; the message gives the first difference.
        """
        if self.text_ids not in ("", "equal") and not self.text_ids.startswith(_UNREAD):
            raise RunError(
                f"{place} is not written, because {self.by} gives a text other ids: "
                f"{self.text_ids}; --tokenizer names another tokenizer"
            )

    @property
    def line(self) -> str:
        """The comparison in one line, which `export` and `import` print last."""
        text = f"; ids of a text: {self.text_ids}" if self.text_ids else ""
        return (
            f"read by {self.by}: largest logit difference {self.logit_difference:.1e} over "
            f"{self.tokens} tokens, of logits up to {self.largest_logit:.1f}; {self.greedy_equal} "
            f"of {self.greedy} greedy tokens equal{text}"
        )


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text with its token ids, to be encoded by another program too."""

    text: str
    ids: Sequence[int]


_UNREAD = "not read"
_TEXT = "It isn't  13 o'clock, naïve Zoë!\n\n\tYes: 3.5 \u20ac, \U0001f600 日本.<|endoftext|> X \n"
"""A text with the features that tokenizers treat differently."""


def encoded_text(tokenizer: Tokenizer, model: GPT) -> EncodedText:
    """Return a text that the tokenizer can encode, with its ids."""
    text = _TEXT
    if tokenizer.kind in ("char", "symbols"):
        text = tokenizer.decode(_sample_tokens(model))
    if tokenizer.kind == "symbols":
        text = "\n" + text.removeprefix("\n")  # every text of symbols begins with a newline
    return EncodedText(text, tokenizer.encode(text).tolist())


def _sample_tokens(model: GPT) -> _Tokens:
    """Return a window of tokens drawn from the model's own distribution."""
    size = min(WINDOW, model.config.context_length)
    rng = np.random.default_rng(0)
    tokens = [int(rng.integers(model.config.vocab_size))]
    caches = model.new_caches()
    while len(tokens) < size:
        logits = model(mx.array([tokens[-1:]]), caches)[0, -1].astype(mx.float32)
        chances = np.array(mx.softmax(logits)).astype(np.float64)
        tokens.append(int(rng.choice(len(chances), p=chances / chances.sum())))
    return np.array(tokens)


@dataclass(frozen=True, slots=True)
class Reply:
    """The logits of a window and the greedy tokens after a prompt, computed by one program."""

    logits: _Logits
    greedy: list[int]
    by: str  # the program, with its version
    text_ids: str = ""  # see `Parity`


Answer = Callable[[_Tokens, list[int], int], Reply]
"""Computes the reply for a window, a prompt, and the number of greedy tokens after it."""


def by_reading(model: GPT, what: str = "this program") -> Answer:
    """Return the answer of a model of this package, which decodes with its cache."""

    def answer(tokens: _Tokens, prompt: list[int], count: int) -> Reply:
        logits = np.array(model(mx.array(tokens)[None])[0].astype(mx.float32))
        caches, greedy = model.new_caches(), [*prompt]
        following = model(mx.array(prompt)[None], caches)
        for _ in range(count):
            likeliest: Any = following[0, -1].argmax().item()
            greedy.append(likeliest)
            if len(greedy) < len(prompt) + count:
                following = model(mx.array([greedy[-1:]]), caches)
        return Reply(logits, greedy[len(prompt) :], what)

    return answer


def by_peer(reader: str, path: Path, encoded: EncodedText | None = None, **facts: float) -> Answer:
    """Return the answer of another program, in a process of its own.

    Args:
        reader: One of `peer.READERS`.
        path: The file or folder to load.
        encoded: A text to encode with its tokenizer, if it loads one.
        facts: Arguments of the reader that the file does not record.

    Raises:
        RunError: The program cannot load the path; the message ends with its last line.
    """
    python = interpreter(reader)
    assert python, f"{reader} is not installed"
    asked: dict[str, Any] = dict(facts)
    if encoded and reader in peer.TOKENIZERS and path.is_dir():
        asked["text"] = encoded.text

    def ask(tokens: _Tokens, prompt: list[int], count: int) -> Reply:
        with tempfile.TemporaryDirectory() as folder:
            question, answer = Path(folder, "question.npz"), Path(folder, "answer.npz")
            np.savez(question, tokens=tokens, prompt=prompt, count=count, **asked)
            command = [python, "-I", peer.__file__, reader, path, question, answer]
            offline = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(Path(folder, "modules"))}
            process = subprocess.run(
                [str(part) for part in command],
                capture_output=True,
                text=True,
                env={**os.environ, **offline},
                check=False,
            )
            if process.returncode:
                last = process.stderr.strip().splitlines()[-1:]
                raise RunError(f"{reader} cannot load {path}: {' '.join(last)}")
            with np.load(answer) as reply:
                ids = compared_ids(encoded, dict(reply)) if encoded and "text" in asked else ""
                return Reply(reply["logits"], reply["greedy"].tolist(), str(reply["by"]), ids)

    return ask


def compared_ids(encoded: EncodedText, reply: Mapping[str, Any]) -> str:
    """Compare the ids of a text: return "equal", the first difference, or why ids are missing."""
    if "ids" not in reply:
        return f"{_UNREAD} ({reply.get('ids_error', 'not asked')})"
    ours, theirs = [*encoded.ids], reply["ids"].tolist()
    if ours == theirs:
        return "equal"
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:
        return f"{len(theirs)} and not {len(ours)}"
    return f"number {at + 1} is {theirs[at]} and not {ours[at]}"


def interpreter(reader: str) -> str | None:
    """Return the Python that has another program: `PEERS_PYTHON`, else this one; None if neither.

    Raises:
        RunError: The Python that `PEERS_PYTHON` names cannot be run.
    """
    packages, named = _PACKAGES[reader], os.environ.get(PEERS_PYTHON)
    if named and reader != "mlx" and _has(named, packages):
        return named
    return sys.executable if all(map(importlib.util.find_spec, packages)) else None


@cache
def _has(python: str, packages: tuple[str, ...]) -> bool:
    """Return True if another interpreter finds the packages."""
    code = "import sys; from importlib.util import find_spec; "
    code += f"sys.exit(None in map(find_spec, {packages!r}))"
    try:
        return subprocess.run([python, "-I", "-c", code], check=False).returncode == 0
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"{PEERS_PYTHON}={python}: cannot be run ({reason})") from error


def compare(model: GPT, answer: Answer) -> Parity:
    """Compare a model with another program's answer: a window, and tokens after its beginning."""
    tokens = _sample_tokens(model)
    prompt = tokens[: max(1, len(tokens) // 4)].tolist()
    count = min(GREEDY, model.config.context_length - len(prompt))
    own, reply = by_reading(model)(tokens, prompt, count), answer(tokens, prompt, count)
    return Parity(
        logit_difference=float(np.abs(own.logits - reply.logits).max()),
        largest_logit=float(np.abs(own.logits).max()),
        tokens=len(tokens),
        greedy_equal=sum(a == b for a, b in zip(own.greedy, reply.greedy, strict=False)),
        greedy=count,
        by=reply.by,
        text_ids=reply.text_ids,
    )
