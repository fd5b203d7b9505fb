"""Load an exported model in other programs, and compare it with the original."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float

from mlx_attn.errors import RunError
from mlx_attn.interop import peer
from mlx_attn.model.gpt import GPT
from mlx_attn.text.tokenizers import Tokenizer

_PEERS_PYTHON = "MLX_ATTN_PEERS_PYTHON"
"""Environment variable with a Python that has the other programs, such as mlx-lm and torch."""

_WINDOW = 64
"""Tokens whose logits are compared, at most."""

_GREEDY = 100
"""Greedy tokens that are compared, at most."""

_FAR = 0.01
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
        """Refuse a model that computes something else in another program.

        Raises:
            RunError: A logit is not finite, or differs by more than `_FAR` of the largest.
        """
        if not self.logit_difference <= _FAR * max(1, self.largest_logit):
            raise RunError(
                f"{place} is not written, because it would not be this model: {self.line}; at most "
                f"{_FAR:g} of the largest logit is rounding. 'mlx-attn verify' shows whether this "
                "machine computes right"
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


UNREAD = "not read"
"""How `Parity.text_ids` begins if the other program could not read the text."""
_TEXT = "It isn't  13 o'clock, naïve Zoë!\n\n\tYes: 3.5 \u20ac, \U0001f600 日本.<|endoftext|> X \n"
"""A text with the features that tokenizers treat differently."""


class Reference:
    """What other programs must compute too: logits of a window, greedy tokens, ids of a text."""

    def __init__(self, model: GPT, tokenizer: Tokenizer | None = None):
        self._tokens = _sample_tokens(model)
        self._prompt = self._tokens[: max(1, len(self._tokens) // 4)]
        self._count = min(_GREEDY, model.config.context_length - len(self._prompt))
        self._logits, self._greedy = self._answer(model)
        self._text, self._ids = "", list[int]()
        if tokenizer:
            closed = tokenizer.kind in ("char", "symbols")  # these read only their own words
            self._text = tokenizer.decode(self._tokens) if closed else _TEXT
            if tokenizer.kind == "symbols":  # every text of symbols begins with a newline
                self._text = "\n" + self._text.removeprefix("\n")
            self._ids = tokenizer.encode(self._text).tolist()

    def _answer(self, model: GPT) -> tuple[np.ndarray, list[int]]:
        """Return the logits of the window, and greedy tokens decoded with the cache."""
        logits = np.array(model(mx.array(self._tokens)[None])[0].astype(mx.float32))
        caches, greedy, following = model.new_caches(), list[int](), self._prompt
        while len(greedy) < self._count:
            likeliest: Any = model(mx.array(following)[None], caches)[0, -1].argmax().item()
            greedy.append(likeliest)
            following = greedy[-1:]
        return logits, greedy

    def compare_model(self, model: GPT) -> Parity:
        """Compare a model of this program, such as one that was read back."""
        return self._parity(*self._answer(model), "this program")

    def compare_peer(self, reader: str, path: Path, **facts: float) -> Parity:
        """Compare the model that another program loads, in a process of its own.

        Args:
            reader: One of `peer.READERS`, which `interpreter` finds.
            path: The file or folder to load.
            facts: Arguments of the reader that the file does not record.

        Raises:
            RunError: The program cannot load the path; the message ends with its last line.
        """
        python = interpreter(reader)
        assert python, f"{reader} is not installed"
        text = self._text if reader in peer.TOKENIZERS and path.is_dir() else ""
        with tempfile.TemporaryDirectory() as folder:
            question, answer = Path(folder, "question.npz"), Path(folder, "answer.npz")
            asked: dict[str, Any] = {"tokens": self._tokens, "prompt": self._prompt, **facts}
            np.savez(question, count=self._count, text=text, **asked)
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
            with np.load(answer) as file:
                reply = dict(file)
        ids = text and compared_ids(self._ids, reply)
        return self._parity(reply["logits"], reply["greedy"].tolist(), str(reply["by"]), ids)

    def _parity(
        self, logits: Float[np.ndarray, "T V"], greedy: Sequence[int], by: str, text_ids: str = ""
    ) -> Parity:
        return Parity(
            logit_difference=float(np.abs(self._logits - logits).max()),
            largest_logit=float(np.abs(self._logits).max()),
            tokens=len(self._tokens),
            greedy_equal=sum(a == b for a, b in zip(self._greedy, greedy, strict=False)),
            greedy=self._count,
            by=by,
            text_ids=text_ids,
        )


def _sample_tokens(model: GPT) -> list[int]:
    """Return a window of tokens drawn from the model's own distribution."""
    rng = np.random.default_rng(0)
    tokens = [int(rng.integers(model.config.vocab_size))]
    caches = model.new_caches()
    while len(tokens) < min(_WINDOW, model.config.context_length):
        logits = model(mx.array([tokens[-1:]]), caches)[0, -1].astype(mx.float32)
        chances = np.array(mx.softmax(logits)).astype(np.float64)
        tokens.append(int(rng.choice(len(chances), p=chances / chances.sum())))
    return tokens


def compared_ids(ours: Sequence[int], reply: dict[str, Any]) -> str:
    """Compare the ids of a text: return "equal", the first difference, or why ids are missing."""
    if "ids" not in reply:
        return f"{UNREAD} ({reply.get('ids_error', 'not asked')})"
    theirs = reply["ids"].tolist()
    for i, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if own != other:
            return f"number {i + 1} is {other} and not {own}"
    return "equal" if len(ours) == len(theirs) else f"{len(theirs)} and not {len(ours)}"


def interpreter(reader: str) -> str | None:
    """Return the Python with another program: `MLX_ATTN_PEERS_PYTHON`, else this one, or None.

    Raises:
        RunError: The Python that `MLX_ATTN_PEERS_PYTHON` names cannot be run.
    """
    packages, named = _PACKAGES[reader], os.environ.get(_PEERS_PYTHON)
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
        raise RunError(f"{_PEERS_PYTHON}={python}: cannot be run ({reason})") from error
