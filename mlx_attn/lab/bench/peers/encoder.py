"""A language model of `mlx.nn.TransformerEncoder`, as one would write it with MLX's own layers."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from jaxtyping import Float, Integer

from mlx_attn import blas
from mlx_attn.attention.metal import on_gpu
from mlx_attn.lab.bench.timing import Subject
from mlx_attn.lab.bench.work import random_tokens
from mlx_attn.model import GPTConfig
from mlx_attn.training.config import TrainConfig


class EncoderModel(nn.Module):
    """Token and position embeddings, the encoder under a causal mask, and a linear head."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.tok_emb = nn.Embedding(config.vocab_size, config.emb_dim)
        self.pos_emb = nn.Embedding(config.context_length, config.emb_dim)
        self.encoder = nn.TransformerEncoder(
            config.n_layers,
            config.emb_dim,
            config.n_heads,
            config.hidden_dim,
            activation=nn.gelu_approx,
            norm_first=True,
        )
        self.out_head = nn.Linear(config.emb_dim, config.vocab_size, bias=False)

    def __call__(self, tokens: Integer[mx.array, "B T"]) -> Float[mx.array, "B T V"]:
        """Logits of the next token after each of the given ones."""
        T = tokens.shape[1]
        mask = nn.MultiHeadAttention.create_additive_causal_mask(T)
        x = self.tok_emb(tokens) + self.pos_emb(mx.arange(T))
        return self.out_head(self.encoder(x, mask))


def encoder_step(config: GPTConfig, training: TrainConfig) -> Subject:
    """A training step: loss, gradients, clipping and AdamW, compiled on a GPU."""
    model = EncoderModel(config)
    optimizer = optim.AdamW(
        1e-6, [training.beta1, training.beta2], weight_decay=training.weight_decay
    )
    windows = random_tokens(config.vocab_size, training.batch_size * (config.context_length + 1))
    windows = windows.reshape(training.batch_size, -1)
    state = [model.state, optimizer.state]
    gradients = nn.value_and_grad(model, _loss)

    def step(windows: mx.array) -> mx.array:
        loss, found = gradients(model, windows)
        clipped, _ = optim.clip_grad_norm(found, training.clip)
        optimizer.update(model, clipped)
        return loss

    one = mx.compile(step, inputs=state, outputs=state) if on_gpu() else step

    def run() -> None:
        blas.use_threads(blas.preload().threads)
        mx.eval(one(windows), state)

    return run


def _loss(model: EncoderModel, windows: mx.array) -> mx.array:
    return nn.losses.cross_entropy(model(windows[:, :-1]), windows[:, 1:], reduction="mean")
