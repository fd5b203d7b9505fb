import mlx.core as mx
import numpy as np

from mlx_attn.attention.catalog import find_variant
from mlx_attn.model.gpt import GPT
from tests.runs import small_gpt

SIZES = {"vocab_size": 256, "context_length": 12, "n_layers": 2, "start": "book"}


def gpt(variant: str = "standard", **settings) -> GPT:
    """Return a tiny GPT of any variant whose weights are large enough to have opinions."""
    mx.random.seed(7)
    model = small_gpt(**{**SIZES, **find_variant(variant).settings, **settings})
    model.tok_emb.weight = mx.random.normal(model.tok_emb.weight.shape)
    if "out_head" in model:
        model.out_head.weight = mx.random.normal(model.out_head.weight.shape)
    return model


def by_full_passes(model, prompt, n: int, temp: float = 0.0, seed: int = 0) -> list[int]:
    """Every token from the logits of the text in the context, with the random keys of a seed."""
    context, key = model.config.context_length, mx.random.key(seed)
    text, start = list(prompt), 0
    for _ in range(n):
        if len(text) - start > context:
            start = len(text) - max(1, context // 2)
        logits = model(mx.array([text[start:]]))[:, -1]
        key, now = mx.random.split(key)
        drawn = mx.argmax(logits, axis=-1)
        if temp:
            drawn = mx.random.categorical((logits - logits.max()) * (1 / temp), key=now)
        text.append(int(np.array(drawn)[0]))
    return text[len(prompt) :]
