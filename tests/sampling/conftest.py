import mlx.core as mx

from mlx_attn.attention.catalog import find_variant
from mlx_attn.model.gpt import GPT
from tests.runs import small_gpt

SIZES = {"vocab_size": 256, "context_length": 12, "n_layers": 2}


def gpt(variant: str = "standard", **settings) -> GPT:
    """Return a tiny GPT of any variant whose weights are large enough to have opinions."""
    mx.random.seed(7)
    model = small_gpt(**{**SIZES, **find_variant(variant).settings, **settings})
    model.tok_emb.weight = mx.random.normal(model.tok_emb.weight.shape)
    if "out_head" in model:
        model.out_head.weight = mx.random.normal(model.out_head.weight.shape)
    return model
