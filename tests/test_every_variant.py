"""Every variant of the table trains, saves, loads and samples."""

from pathlib import Path

import mlx.core as mx
import pytest

from mlx_attn.attention.config import VARIANTS
from mlx_attn.runs import create_run, open_run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import stream_generate
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.training.config import resolve
from mlx_attn.training.events import Ended, Stepped
from mlx_attn.training.loop import train
from mlx_attn.training.trainer import Trainer

STEPS = 90


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("text")
    lines = [f"{name} has {n} red kites.\n" for n in range(9) for name in ("Ann", "Ben", "Cara")]
    (folder / "kites.txt").write_text("".join(lines) * 8)
    return prepare(str(folder / "kites.txt"), "char", directory=folder)


@pytest.fixture(scope="module", params=VARIANTS)
def trained(request, corpus, tmp_path_factory) -> tuple[Trainer, list]:
    settings = resolve(
        {"preset": "nano", "variant": request.param, "context_length": 24, "emb_dim": 32},
        {"steps": STEPS, "batch_size": 8, "warmup": 2, "log_every": 5, "eval_every": 0},
    )
    trainer = Trainer(settings, corpus)
    path = tmp_path_factory.mktemp("runs") / request.param
    trainer.run = create_run(path, settings.record(trainer.model.config))
    corpus.tokenizer.save(path)
    return trainer, list(train(trainer))


def run_path(trainer: Trainer) -> Path:
    assert trainer.run
    return trainer.run.path


def test_it_trains(trained):
    trainer, reports = trained
    losses = [report.loss for report in reports if isinstance(report, Stepped)]
    assert losses[-1] < 0.6 * losses[0]
    assert isinstance(reports[-1], Ended)
    assert reports[-1].variant == run_path(trainer).name


def test_what_is_saved_is_what_is_loaded(trained):
    trainer, _ = trained
    loaded = open_run(run_path(trainer)).load_model()
    tokens = mx.arange(24)[None] % trainer.model.config.vocab_size
    trainer.model.eval()
    assert mx.array_equal(loaded(tokens), trainer.model(tokens))


def test_it_samples_words_of_its_text(trained):
    trainer, _ = trained
    run = open_run(run_path(trainer))
    pieces = stream_generate(
        run.load_model(), run.load_tokenizer(), "Ann has", SamplerConfig(temp=0.0), max_tokens=60
    )
    text = "".join(piece.text for piece in pieces)
    assert len(text) == 60
    assert " kites.\n" in text
