"""Every variant of the table works everywhere, or is refused in a line.

Trained, saved, resumed bit for bit, sampled with its caches, probed and tracked; and
docs/variants.md has its cost and conversions.
"""

from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from make import PAGE, card, config_of, moved

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.cost import model_cost
from mlx_attn.errors import ConfigError
from mlx_attn.model.gpt import GPT
from mlx_attn.probe.heads import probe
from mlx_attn.probe.tracking import track
from mlx_attn.run_directory import open_run
from mlx_attn.runs import load_run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, TokenStep, decode
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.config import Settings, resolve
from mlx_attn.training.events import Stepped
from mlx_attn.training.loop import train
from mlx_attn.training.trainer import Trainer
from tests.runs import create_run
from tests.sampling.conftest import by_full_passes

STEPS, STOP = 6, 2
SIZES = {"preset": "nano", "context_length": 12, "emb_dim": 16, "n_heads": 4, "latent_dim": 6}
RECIPE = {"steps": STEPS, "batch_size": 8, "warmup": 1, "log_every": 1, "eval_every": 0}
GREEDY = SamplerConfig(temp=0.0)
TOKENS = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])


@pytest.mark.parametrize(
    "form",
    [
        *({"variant": name} for name in VARIANTS),
        {"pattern": "deltanet,sliding-window,standard", "n_layers": 3},
        {"pattern": "value-residual,path,mla", "n_layers": 3},
    ],
    ids=str,
)
def test_a_form_serves_for_everything_or_says_why_not(form, corpus, tmp_path):
    settings = resolve(SIZES | RECIPE, form)
    model = trains_and_resumes_with_the_same_bits(settings, corpus, tmp_path / "run")
    samples_from_its_run(tmp_path / "run", model)
    mx.random.seed(0)
    strong = moved(model)  # every trained number, hooks included, away from where it starts
    decodes_with_caches_as_it_reads(strong)
    is_probed_and_tracked_or_refused(strong)
    if variant := VARIANTS.get(form.get("variant", "")):
        # Its cost, and each conversion: exact, with an error, or refused.
        shown = card(variant, model_cost(config_of(VARIANTS["standard"])))
        assert f"{shown}\n\n" in PAGE.read_text(encoding="utf-8") + "\n"


def trains_and_resumes_with_the_same_bits(settings: Settings, corpus: Corpus, path: Path) -> GPT:
    """Train once as a whole, and once in two parts that meet in a run directory."""
    whole, first, second = (Trainer(settings, corpus) for _ in range(3))
    losses = [report.loss for report in train(whole) if isinstance(report, Stepped)]
    assert np.mean(losses[-2:]) < losses[0] - 0.1
    record = settings.record(first.model.config)
    first.run = create_run(path, record, tokenizer=corpus.tokenizer)
    list(train(first, lambda: first.progress.step == STOP))
    second.resume(open_run(path))
    list(train(second))
    one, other = (named_arrays([t.model.parameters(), *t.optimizer.state]) for t in (whole, second))
    assert one.keys() == other.keys()
    assert [name for name in one if not mx.array_equal(one[name], other[name])] == []
    return second.model


def samples_from_its_run(path: Path, model: GPT) -> None:
    """The run holds the model, which writes text of its own tokenizer."""
    loaded = load_run(str(path))
    model.eval()
    assert mx.array_equal(loaded.model(TOKENS), model(TOKENS))
    pieces = loaded.stream("the cat", GREEDY, max_tokens=5)
    assert len("".join(piece.text for piece in pieces)) == 5


def decodes_with_caches_as_it_reads(model: GPT) -> None:
    """The likeliest tokens, beyond the context's end too, equal those by whole forward passes."""
    prompt = [3, 1, 4, 1, 5]
    decoded = islice(decode(DecodingState(TokenStep(model)), prompt, Sampler(GREEDY)), 12)
    assert [token for (token,) in decoded] == by_full_passes(model, prompt, 12)


def is_probed_and_tracked_or_refused(model: GPT) -> None:
    tokens = np.array(TOKENS)
    reasons = probe(model, tokens).reasons  # for each matrix that is left out
    if reasons:
        with pytest.raises(ConfigError):
            track(model, 0, mx.array(tokens))
        return
    tracked = track(model, 0, mx.array(tokens))
    for numbers in [*tracked.scores.values(), *tracked.value_outputs.values()]:
        assert np.shape(numbers) == (model.config.n_layers, model.config.n_heads)
        assert np.isfinite(numbers).all()
