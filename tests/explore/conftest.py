"""Small models of every kind as runs, and one Chromium for all tests of the page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from mlx_attn.explore.manifest import page_model
from mlx_attn.explore.page import render_page
from mlx_attn.model.config import config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.runs import load_run
from mlx_attn.text.characters import CharacterTokenizer
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.config import resolve
from tests.runs import create_run

TEXT = "Ann has nine red kites.\nBen sees one of them; then it is gone?"
SIZES = {"n_layers": 2, "n_heads": 2, "emb_dim": 16, "context_length": 64}


@pytest.fixture(scope="session")
def make_run(tmp_path_factory) -> Callable[..., Run]:
    """Writes a run of a tiny model whose every weight is random, and keeps it."""

    def make(
        name: str = "run",
        tokenizer: Tokenizer | None = None,
        facts: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Run:
        tokenizer = tokenizer or CharacterTokenizer.train(TEXT)
        chosen = resolve({"preset": "nano", **SIZES}, settings)
        config = config_from({**chosen.model, "vocab_size": tokenizer.vocab_size})
        record = chosen.record(config, **(facts or {}))
        run = create_run(tmp_path_factory.mktemp("runs") / name, record, tokenizer=tokenizer)
        model = GPT(config_from(record["model"]))
        mx.random.seed(3)
        trained = model.trainable_parameters()
        model.update(tree_map(lambda w: w + 0.3 * mx.random.normal(w.shape), trained))
        run.save_model(model)
        return run

    return make


@pytest.fixture(scope="session")
def show(browser, tmp_path_factory) -> Callable[..., Any]:
    """Opens the page of some runs."""

    def open_page(
        *runs: Run,
        texts=(TEXT,),
        dtype: str = "float32",
        words: Sequence[str] | None = None,
        **looks: Any,
    ) -> Any:
        path = tmp_path_factory.mktemp("pages") / "page.html"
        models = [page_model(load_run(str(run.path)), dtype, words) for run in runs]
        path.write_text(render_page(models, texts), "utf-8")
        return browser.open(path.as_uri(), **looks)

    return open_page
