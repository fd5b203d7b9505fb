"""Runs and models that tests make, and settings of a training that takes a tenth of a second."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run, new_run
from mlx_attn.runs import LoadedRun
from mlx_attn.text.tokenizers import Tokenizer

STORY = "the red cat sat on a mat. an old dog sat by the wet door. the cat saw the dog. " * 20
SIZES: dict[str, Any] = {"context_length": 16, "emb_dim": 16, "n_heads": 2, "n_layers": 1}
TINY: dict[str, Any] = {**SIZES, "tokenizer": "char", "batch_size": 4, "steps": 6, "warmup": 2}


def small_gpt(seed: int = 0, /, **settings: Any) -> GPT:
    """Return a model of 20 tokens, ready for evaluation."""
    model = GPT(GPTConfig(**{**SIZES, "vocab_size": 20, **settings}), seed)
    model.eval()
    return model


def run_of(model: GPT, tokenizer: Tokenizer, **settings: Any) -> LoadedRun:
    """Return a run with these settings, as its directory would make it."""
    return LoadedRun(Run(Path("x"), settings), model, tokenizer)


def create_run(path: Path, settings: Mapping[str, Any], overwrite=False, tokenizer=None) -> Run:
    """Return the run directory that `new_run` makes, which no process then holds."""
    with new_run(path, settings, overwrite, tokenizer) as run:
        return run
