from collections.abc import Callable

import pytest

from mlx_attn.runs import create_run
from mlx_attn.text.corpus import Corpus, Split
from mlx_attn.text.tokenizers import train_tokenizer
from mlx_attn.training.settings import resolve
from mlx_attn.training.trainer import Trainer

TEXT = "no newline and no end here; " * 40


@pytest.fixture(scope="session")
def letters() -> Corpus:
    """A thousand characters, none of which is a newline."""
    tokenizer = train_tokenizer("char", TEXT, 0)
    train, val = (
        Split(tokens=tokenizer.encode(part), n_bytes=len(part)) for part in (TEXT[:900], TEXT[900:])
    )
    return Corpus("letters", "a digest", tokenizer, train, val)


@pytest.fixture
def learner(letters, tmp_path) -> Callable[..., Trainer]:
    """Makes a trainer of a tiny model, which keeps its run in `tmp_path`/run unless told not to."""

    def make(keep: bool = True, **settings) -> Trainer:
        sizes = {"context_length": 8, "emb_dim": 16, "n_heads": 2, "n_layers": 1, "batch_size": 4}
        recipe = {"steps": 6, "log_every": 2, "eval_every": 3, "warmup": 2, "tokenizer": "char"}
        trainer = Trainer(resolve({**sizes, **recipe}, settings), letters)
        if keep:
            record = trainer.settings.record(trainer.model.config)
            trainer.run = create_run(tmp_path / "run", record)
        return trainer

    return make
