"""The run that a training's end names beside its own."""

from typing import Any

import pytest

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.training.show import what_next
from tests.runs import create_run

SIZES = {"vocab_size": 16, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}


@pytest.fixture
def trained(tmp_path):
    """Makes a run in runs/ that ended with a loss."""

    def make(name: str, loss: float, reason: str = "done", **changes) -> Run:
        maps: dict[str, Any] = {**VARIANTS[changes.get("variant", "standard")].maps}
        config = GPTConfig(**SIZES, **maps)
        settings = {
            **{"variant": "standard", "preset": "nano", "digest": "d", "model": config.as_dict()},
            **{"training": {"seed": 0, "steps": 9} | changes.pop("training", {})},
            **{"text": {"data": "my notes"}},
        }
        run = create_run(tmp_path / "runs" / name, settings | changes)
        run.save_model(GPT(config))
        run.add_report({"event": "eval", "step": 9, "val_loss": 2 * loss, "bits_per_byte": loss})
        run.add_report({"event": "end", "steps": 9, "reason": reason})
        return run

    return make


def test_the_end_of_a_training_names_the_standard_run_beside_it(trained):
    trained("plain", 0.25)
    merged = trained("merged", 0.2541, variant="merged")
    assert what_next(merged)[2:] == [
        "beside it:     plain 0.2500 bits per byte, this one +0.0041: one seed each is no verdict",
        "for a verdict: mlx-attn compare --variants standard,merged --preset nano "
        "--data 'my notes'",
        f"see both:      mlx-attn open {merged.path.parent / 'plain'} {merged.path}",
    ]
