"""mlx-lm's own generation with its own GPT-2, of random weights."""

import importlib

import mlx.core as mx

from mlx_attn import blas
from mlx_attn.lab.bench.timing import Subject
from mlx_attn.lab.bench.work import decoded_lengths, decoding_prompt
from mlx_attn.model import GPTConfig
from mlx_attn.training.config import TrainConfig


def mlx_lm_decoding(config: GPTConfig, training: TrainConfig) -> Subject:
    """One text, token by token, the likeliest each time, by `mlx_lm.generate.generate_step`."""
    gpt2 = importlib.import_module("mlx_lm.models.gpt2")
    generation = importlib.import_module("mlx_lm.generate")
    sizes = gpt2.ModelArgs(
        model_type="gpt2",
        n_ctx=config.context_length,
        n_embd=config.emb_dim,
        n_head=config.n_heads,
        n_layer=config.n_layers,
        n_positions=config.context_length,
        layer_norm_epsilon=1e-5,
        vocab_size=config.vocab_size,
    )
    model = gpt2.Model(sizes)
    mx.eval(model.parameters())
    prompt = mx.array(decoding_prompt(config))
    _, new = decoded_lengths(config)

    def run() -> None:
        blas.use_threads(blas.preload().threads)
        for _ in generation.generate_step(prompt, model, max_tokens=new):
            pass
        mx.synchronize()

    return run
