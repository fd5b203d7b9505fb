"""Run other programs on the work of `mlx-attn bench`, with models that compute the same function.

floors.py --peers times them together with ours.
"""

import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

# Before MLX, because it loads the BLAS.
from mlx_attn.machine import blas

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from mlx_attn.bench import speed
from mlx_attn.bench.speed import MedianIQR, Setup, Timed
from mlx_attn.machine.device import on_gpu
from mlx_attn.machine.streams import keep_buffers
from mlx_attn.model.config import BLOCKS, GPTConfig, config_from
from mlx_attn.training.config import TrainConfig


class EncoderModel(nn.Module):
    """Token and position embeddings, MLX's encoder under a causal mask, and a linear head."""

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

    def __call__(self, tokens: mx.array) -> mx.array:
        """Return logits [B, T, V] of the next token after each of the tokens [B, T]."""
        T = tokens.shape[1]
        mask = nn.MultiHeadAttention.create_additive_causal_mask(T)
        x = self.tok_emb(tokens) + self.pos_emb(mx.arange(T))
        return self.out_head(self.encoder(x, mask))


def encoder_step(config: GPTConfig, training: TrainConfig) -> Timed:
    """Return a training step: loss, gradients, clipping and AdamW, compiled on a GPU."""
    model = EncoderModel(config)
    optimizer = optim.AdamW(1e-6, [0.9, training.beta2], weight_decay=training.weight_decay)
    B, T = training.batch_size, config.context_length
    windows = speed.random_tokens(config, B * (T + 1)).reshape(B, -1)
    state = [model.state, optimizer.state]

    def loss(model: nn.Module, windows: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(windows[:, :-1]), windows[:, 1:], reduction="mean")

    gradients = nn.value_and_grad(model, loss)

    def step(windows: mx.array) -> mx.array:
        value, found = gradients(model, windows)
        clipped, _ = optim.clip_grad_norm(found, training.clip)
        optimizer.update(model, clipped)
        return value

    one = mx.compile(step, inputs=state, outputs=state) if on_gpu() else step

    def run() -> None:
        blas.use_threads(blas.preload().threads)
        mx.eval(one(windows), state)

    return run


def mlx_lm_decoding(config: GPTConfig, training: TrainConfig) -> Timed:
    """Decode one text greedily, by mlx-lm's generation with its own GPT-2."""
    gpt2: Any = importlib.import_module("mlx_lm.models.gpt2")
    generation: Any = importlib.import_module("mlx_lm.generate")
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
    n_prompt, new = speed.decoded_lengths(config)
    prompt = mx.arange(n_prompt) % config.vocab_size

    def run() -> None:
        blas.use_threads(blas.preload().threads)
        for _ in generation.generate_step(prompt, model, max_tokens=new):
            pass
        mx.synchronize()

    return run


_MAPS = {"score": "separate", "value": "linear", "output": "linear", "n_kv_heads": 0}
_BOOK: dict[str, Any] = {**BLOCKS["book"], **_MAPS, "position": "learned", "drop_rate": 0.0}
ENCODER = _BOOK | {"qkv_bias": False, "tied_head": False}
GPT2 = _BOOK | {"qkv_bias": True, "tied_head": True}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another program.

    Attributes:
        name: A readable name.
        work: The kind of work, a key of `WORKLOADS`.
        make: Does the same work as `WORKLOADS[work]` with the same configuration.
        like: Settings with which our model computes the same function.
        package: The package that must be installed.
    """

    name: str
    work: str
    make: Callable[[GPTConfig, TrainConfig], Timed]
    like: dict[str, Any] = field(default_factory=dict)
    package: str = "mlx"


PEERS = [
    Peer("mlx.nn.TransformerEncoder", "train", encoder_step, ENCODER),
    Peer("mlx-lm's gpt2", "decode", mlx_lm_decoding, GPT2, "mlx_lm"),
]


def beside(peer: Peer, setup: Setup, seconds: float) -> dict[str, Any]:
    """Return the tokens per second of ours and of a peer at the same sizes, and their ratio.

    Both sides use AdamW; the decoding caches have room for all tokens.
    """
    config, training = setup
    training = replace(training, optimizer="adamw", dtype="float32", accumulate=1)
    room = max(config.context_length, speed.PROMPT_TOKENS + speed.NEW_TOKENS)
    sizes = {"context_length": room} if peer.work == "decode" else {}
    config = config_from(config.as_dict() | peer.like | sizes)
    ours = speed.WORKLOADS[peer.work](config, training)
    keep_buffers()
    both = speed.interleaved({"ours": ours.run, "theirs": peer.make(config, training)}, seconds)
    tok_s = {name: asdict(MedianIQR.of(ours.tokens / times)) for name, times in both.items()}
    faster = asdict(MedianIQR.of(both["theirs"] / both["ours"]))
    return {"work": peer.work, "peer": peer.name, **tok_s, "faster": faster}
