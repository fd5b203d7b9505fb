from collections.abc import Callable

import pytest

from mlx_attn.probe.tracking import track_heads
from mlx_attn.training.config import resolve
from mlx_attn.training.trainer import Trainer
from tests.runs import TINY, create_run

RECIPE = {"optimizer": "adamw", "schedule": "cosine", "start": "gpt2", "eval_every": 0}
SETTINGS = {**TINY, **RECIPE, "context_length": 12, "steps": 12}


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
