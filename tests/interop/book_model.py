"""A GPTModel in PyTorch as the book's chapter 4 specifies it, for the tests: run by path.

    python -I book_model.py make model.pth tokens.npy logits.npy     a model at random, saved
    python -I book_model.py read model.pth tokens.npy logits.npy     a state dict, loaded strictly

The sizes are those of `CONFIG`.
"""

import math
import sys

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

CONFIG = {"vocab_size": 256, "context_length": 32, "emb_dim": 48, "n_heads": 4, "n_layers": 2}


class MultiHeadAttention(nn.Module):
    def __init__(self, width: int, context: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.W_query = nn.Linear(width, width, bias=False)
        self.W_key = nn.Linear(width, width, bias=False)
        self.W_value = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.triu(torch.ones(context, context), diagonal=1))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            layer(x).view(B, T, self.n_heads, -1).transpose(1, 2)
            for layer in (self.W_query, self.W_key, self.W_value)
        )
        scores = q @ k.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:T, :T], -torch.inf)
        weights = torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(B, T, C))


class LayerNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.scale * (x - mean) / torch.sqrt(var + 1e-5) + self.shift


class GELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class FeedForward(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        return self.layers(x)


class TransformerBlock(nn.Module):
    def __init__(self, width: int, context: int, n_heads: int):
        super().__init__()
        self.att = MultiHeadAttention(width, context, n_heads)
        self.ff = FeedForward(width)
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)

    def forward(self, x):
        x = x + self.att(self.norm1(x))
        return x + self.ff(self.norm2(x))


class GPTModel(nn.Module):
    def __init__(self, vocab_size, context_length, emb_dim, n_heads, n_layers):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, emb_dim)
        self.pos_emb = nn.Embedding(context_length, emb_dim)
        blocks = [TransformerBlock(emb_dim, context_length, n_heads) for _ in range(n_layers)]
        self.trf_blocks = nn.Sequential(*blocks)
        self.final_norm = LayerNorm(emb_dim)
        self.out_head = nn.Linear(emb_dim, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.tok_emb(tokens) + self.pos_emb(torch.arange(tokens.shape[1]))
        return self.out_head(self.final_norm(self.trf_blocks(x)))


if __name__ == "__main__":
    what, path, tokens, logits = sys.argv[1:]
    torch.manual_seed(5)
    model = GPTModel(**CONFIG).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    given = torch.tensor(np.load(tokens)).long()
    if what == "make":
        nn.functional.cross_entropy(model(given).flatten(0, 1), given.flatten()).backward()
        optimizer.step()
        state = {"model_state_dict": model.state_dict()}
        torch.save(state | {"optimizer_state_dict": optimizer.state_dict()}, path)
    else:
        model.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        np.save(logits, model(given).numpy())
