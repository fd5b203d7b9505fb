"""mlx-lm's own generation with its own GPT-2, of random weights."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from jaxtyping import Float, Integer

from mlx_attn import blas
from mlx_attn.attention.attention import on_gpu
from mlx_attn.bench.floors import (
    NEW_TOKENS,
    PROMPT,
    WORKS,
    decoded_lengths,
    decoding_prompt,
    random_tokens,
)
from mlx_attn.bench.timing import Spread, Subject, in_turns
from mlx_attn.model.config import BLOCKS, GPTConfig, config_from
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.trainer import keep_buffers


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


_MAPS = {"score": "separate", "value": "linear", "output": "linear", "n_kv_heads": 0}
_BOOK: dict[str, Any] = {**BLOCKS["book"], **_MAPS, "position": "learned", "drop_rate": 0.0}
ENCODER = _BOOK | {"qkv_bias": False, "tied_head": False}
GPT2 = _BOOK | {"qkv_bias": True, "tied_head": True}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another program.

    Attributes:
        name: For people.
        work: The kind of work it does, a key of `WORKS`.
        make: The same work as `WORKS[work]` of the same configuration, by its means.
        like: Settings with which our model computes the same.
        package: What has to be installed.
    """

    name: str
    work: str
    make: Callable[[GPTConfig, TrainConfig], Subject]
    like: dict[str, Any] = field(default_factory=dict)
    package: str = "mlx"

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        return importlib.util.find_spec(self.package) is not None


PEERS: tuple[Peer, ...] = (
    Peer("mlx.nn.TransformerEncoder", "train", encoder_step, ENCODER),
    Peer("mlx-lm's gpt2", "decode", mlx_lm_decoding, GPT2, "mlx_lm"),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours and a peer at the same work.

    Attributes:
        work: train, forward or decode.
        peer: Its name.
        ours: Our tokens per second.
        theirs: The peer's.
        faster: Our tokens per second divided by the peer's.
    """

    work: str
    peer: str
    ours: Spread
    theirs: Spread
    faster: Spread


def beside_peers(
    config: GPTConfig,
    training: TrainConfig,
    peers: Sequence[Peer],
    seconds: float,
) -> Iterator[Comparison]:
    """Measure the installed ones of some peers, each in turns with ours.

    Args:
        config: Sizes; the peer decides the rest. Decoding has room for all its tokens.
        training: The batch size; the optimizer is AdamW on both sides.
        peers: Those to measure.
        seconds: About how long each one may take.
    """
    keep_buffers()
    training = replace(training, optimizer="adamw", dtype="float32", accumulate=1)
    for peer in peers:
        if peer.installed:
            yield _comparison(peer, _matched(config, peer), training, seconds)


def _matched(config: GPTConfig, peer: Peer) -> GPTConfig:
    room = {"context_length": max(config.context_length, PROMPT + NEW_TOKENS)}
    return config_from(config.as_dict() | peer.like | (room if peer.work == "decode" else {}))


def _comparison(peer: Peer, config: GPTConfig, training: TrainConfig, seconds: float) -> Comparison:
    ours = WORKS[peer.work](config, training)
    subjects = {"ours": ours.run, "theirs": peer.make(config, training)}
    timings = in_turns(subjects, seconds)
    tokens = float(ours.tokens)
    return Comparison(
        peer.work,
        peer.name,
        timings["ours"].spread.inverse(tokens),
        timings["theirs"].spread.inverse(tokens),
        timings["theirs"].over(timings["ours"]),
    )
