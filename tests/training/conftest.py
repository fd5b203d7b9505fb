from collections.abc import Callable

import pytest

from mlx_attn.probe.tracking import track_heads
from mlx_attn.text.corpus import Corpus, Split
from mlx_attn.text.tokenizers import train_tokenizer
from mlx_attn.training.config import resolve
from mlx_attn.training.trainer import Trainer
from tests.runs import TINY, create_run

SENTENCES = ("the cat sat on the mat. ", "a dog ran to the door. ", "one two three four five. ")
TEXT = "".join(SENTENCES[i * i % 3] + SENTENCES[i % 3] for i in range(40))

RECIPE = {"optimizer": "adamw", "schedule": "cosine", "start": "gpt2", "eval_every": 0}
SETTINGS = {**TINY, **RECIPE, "context_length": 12, "steps": 12}


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """Two thousand characters to train on and two hundred to validate."""
    tokenizer = train_tokenizer("char", TEXT, 0)
    cut = len(TEXT) * 9 // 10
    train, val = (
        Split(tokens=tokenizer.encode(part), n_bytes=len(part)) for part in (TEXT[:cut], TEXT[cut:])
    )
    return Corpus("sentences", "a digest", tokenizer, train, val)


@pytest.fixture
def trainer(corpus) -> Callable[..., Trainer]:
    """Makes a trainer of a model of 5,000 weights; keywords are settings."""

    def make(run=None, **settings) -> Trainer:
        trainer = Trainer(resolve(SETTINGS, settings), corpus)
        track_heads(trainer)
        if run is not None:
            record = trainer.settings.record(trainer.model.config)
            trainer.run = create_run(run, record)
        return trainer

    return make
