"""A run that can speak: its model and its tokenizer, loaded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlx_attn.model import GPT
from mlx_attn.runs import RUNS, Run, find_run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.streaming import Piece, stream
from mlx_attn.text.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Voice:
    """A run, its best weights and its tokenizer."""

    run: Run
    model: GPT
    tokenizer: Tokenizer

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    def stream(
        self,
        prompt: str,
        config: SamplerConfig | None = None,
        max_tokens: int = 200,
        stop: Sequence[str] = (),
    ) -> Iterator[Piece]:
        """The continuation of a prompt; see `mlx_attn.sampling.stream`."""
        return stream(self.model, self.tokenizer, prompt, config, max_tokens, stop)


def open_voice(name: str | None = None, runs: Path = RUNS) -> Voice:
    """Load a run.

    Args:
        name: Its directory, or its name in `runs`; None is the latest in `runs`.
        runs: Where runs land.

    Raises:
        RunError: There is no such run, or it is damaged.
    """
    run = find_run(name, runs)
    return Voice(run, run.load_model(), run.load_tokenizer())
