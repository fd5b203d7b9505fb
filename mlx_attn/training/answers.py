"""What a model answers to a task, to be read by people."""

import mlx.core as mx
import numpy as np

from mlx_attn.model import GPT
from mlx_attn.text.corpus import Split
from mlx_attn.text.tasks import ABILITIES
from mlx_attn.text.tokenizers import Tokenizer


def answered(model: GPT, split: Split, tokenizer: Tokenizer) -> str:
    """The first document of a task with the model's answers in it.

    Behind each wrong answer stands the right one in brackets: `k3 v5[v1]`.

    Args:
        model: In evaluation mode.
        split: Of a task.
        tokenizer: Its tokenizer.
    """
    starts, abilities = np.asarray(split.document_starts), np.asarray(split.token_abilities)
    document = slice(starts[0], starts[1])
    tokens, asked = split.tokens[document], abilities[document] == ABILITIES.index("answer")
    likeliest = np.array(model(mx.array(tokens[None])).argmax(axis=-1))[0]
    texts = [tokenizer.decode([token]) for token in tokens]
    for i in np.flatnonzero(asked[1:] & (likeliest[:-1] != tokens[1:])):
        texts[i + 1] = f"{tokenizer.decode([likeliest[i]])}[{texts[i + 1].strip()}]"
    return "".join(texts).strip()
