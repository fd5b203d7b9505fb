"""Claims about algebra and cost, examined on one small trained model or by counting."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_attn.attention import attention_cost
from mlx_attn.lab.compare.cell import corpus_of
from mlx_attn.lab.convert import convert
from mlx_attn.lab.convert.logits import logit_difference
from mlx_attn.lab.convert.windows import some_windows
from mlx_attn.model import GPT, model_cost
from mlx_attn.model.config import GPTConfig
from mlx_attn.sampling import SamplerConfig, stream
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.loop import train
from mlx_attn.training.objective import window_losses
from mlx_attn.training.settings import resolve
from mlx_attn.training.trainer import Trainer

Numbers = Mapping[str, float]
Examined = tuple[Numbers, bool]

EXACT = 1e-5
"""Largest difference of logits, relative to the largest logit, that counts as none in float32."""

_SETTINGS: dict[str, Any] = {
    "preset": "nano",
    "n_heads": 4,
    "qkv_bias": True,
    "optimizer": "adamw",
    "steps": 60,
    "eval_every": 0,
}
_PROMPT_TOKENS, _WRITTEN = 8, 100


def merging_is_exact() -> Examined:
    """S_h = W_query_h W_key_h^T computes what the two matrices compute, biases included."""
    return _same_as("merged")


def shrinking_is_exact() -> Examined:
    """Of every query-key and value-output pair, head_dim^2 weights per head can go."""
    model, _ = _trained()
    numbers, holds = _same_as("shrunk")
    removed = (
        model_cost(model.config).parameters - model_cost(convert(model, "shrunk").config).parameters
    )
    return {**numbers, "weights removed": removed}, holds and removed > 0


def key_cache_is_enough() -> Examined:
    """Values made from cached keys: half the cache, the same tokens."""
    model, corpus = _trained()
    slim = convert(model, "slim")
    numbers, _ = _same_as("slim")
    ratio = model_cost(slim.config).cache_floats / model_cost(model.config).cache_floats
    same = _written(slim, corpus) == _written(model, corpus)
    found = {**numbers, "cache, times the original": ratio, "same greedy text": float(same)}
    return found, same and ratio == 0.5


def key_bias_is_inert() -> Examined:
    """A key's bias adds the same to all scores of a row, which the softmax does not see."""
    model, corpus = _trained()
    windows = _windows(model, corpus)
    gradients = _bias_gradients(model, mx.concatenate([windows, windows[:, :1]], axis=1))
    before = model(windows)
    moved = _with_key_bias(model, 1.0)
    change = float(np.abs(np.array(moved(windows) - before)).max())
    largest = float(np.abs(np.array(before)).max())
    numbers = {
        "gradient of b_key, times that of b_query": gradients["W_key"] / gradients["W_query"],
        "largest logit difference, b_key moved by 1": change,
        "largest logit": largest,
    }
    return numbers, change <= EXACT * largest and numbers[next(iter(numbers))] < 1e-4


def merging_costs() -> Examined:
    """With H heads S has H/2 times the weights of the two matrices, and H times the products."""
    config = GPTConfig(n_heads=12, emb_dim=768, n_layers=12, vocab_size=50257, context_length=256)
    merged = replace(config, score="merged")
    pairs = attention_cost(config.attention()), attention_cost(merged.attention())
    C, H, T = config.emb_dim, config.n_heads, config.context_length
    query_key = (pairs[1].parameters - (pairs[0].parameters - 2 * C * C)) / (2 * C * C)
    extra = pairs[1].multiply_adds - pairs[0].multiply_adds - (H - 2) * C * C
    scores = (extra + T * C) / (T * C)
    numbers = {
        "heads": float(H),
        "query-key weights, times separate": query_key,
        "score multiply-adds, times separate": scores,
        "attention weights, times separate": pairs[1].parameters / pairs[0].parameters,
        "attention multiply-adds, times separate": pairs[1].multiply_adds / pairs[0].multiply_adds,
        "cache, times separate": pairs[1].cache_floats / pairs[0].cache_floats,
    }
    return numbers, query_key == H / 2 and scores == H


@cache
def _trained() -> tuple[GPT, Corpus]:
    """A model with biases, trained until it says something."""
    settings = resolve(_SETTINGS)
    corpus = corpus_of(settings)
    trainer = Trainer(settings, corpus)
    for _ in train(trainer):
        pass
    trainer.model.eval()
    return trainer.model, corpus


def _same_as(form: str) -> Examined:
    """How far the logits of another form are from the model's."""
    model, corpus = _trained()
    windows = _windows(model, corpus)
    difference = logit_difference(model, convert(model, form), windows)
    largest: Any = mx.abs(model(windows)).max().item()
    numbers = {"largest logit difference": difference, "largest logit": largest}
    return numbers, difference <= EXACT * largest


def _windows(model: GPT, corpus: Corpus) -> mx.array:
    return some_windows(corpus.val, model.config.context_length, 2048)


def _written(model: GPT, corpus: Corpus) -> str:
    beginning = map(int, corpus.val.tokens[:_PROMPT_TOKENS])
    prompt = b"".join(map(corpus.tokenizer.token_bytes, beginning)).decode(errors="ignore")
    pieces = stream(model, corpus.tokenizer, prompt, SamplerConfig(temp=0.0), _WRITTEN)
    return "".join(piece.text for piece in pieces)


def _bias_gradients(model: GPT, windows: mx.array) -> dict[str, float]:
    """The norms of the gradients of query and key biases, all layers together."""
    _, gradients = nn.value_and_grad(model, lambda w: window_losses(model, w).mean())(windows)
    blocks = gradients["trf_blocks"]
    return {
        name: float(np.sqrt(sum(np.square(np.array(b["att"][name]["bias"])).sum() for b in blocks)))
        for name in ("W_query", "W_key")
    }


def _with_key_bias(model: GPT, change: float) -> GPT:
    """The model with all its key biases moved."""
    moved = GPT(model.config)
    moved.update(model.parameters())
    for block in moved.trf_blocks:
        block.att.W_key.bias = block.att.W_key.bias + change
    moved.eval()
    return moved
