"""nanoGPT's laptop recipe in PyTorch, for `speedrun.py` to measure against.

A GPT of 4 layers, 4 heads, width 128 and context 64 on the characters of tiny-shakespeare: GPT-2's
block without biases, a head tied to the embedding, AdamW, 2000 steps of 12 sequences. It follows
the settings that https://github.com/karpathy/nanoGPT gives for a laptop; the code is our own.

    python benchmarks/nanogpt_reference.py --data-dir CORPUS --threads 2 --seed 1337

CORPUS is a folder with train.npy and val.npy, of token ids. Prints one JSON object.
"""

# PyTorch is no dependency: only this file imports it.
# pyright: reportMissingImports=false
import argparse
import json
import math
import sys
import time
from pathlib import Path

try:
    import torch
except ModuleNotFoundError:
    sys.exit("error: the reference needs PyTorch: pip install torch")
import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, STEPS = 4, 4, 128, 64, 12, 2000
PEAK, FLOOR, WARMUP, DECAY, CLIP = 1e-3, 1e-4, 100, 0.1, 1.0


class SelfAttention(nn.Module):
    """Causal attention of several heads from one joined projection."""

    def __init__(self):
        super().__init__()
        self.joined = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] to [B, T, C]."""
        heads = self.joined(x).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a shortcut."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.attention = SelfAttention()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.out = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] to [B, T, C]."""
        x = x + self.attention(self.norm1(x))
        return x + self.out(F.gelu(self.up(self.norm2(x))))


class ReferenceGPT(nn.Module):
    """GPT-2's architecture without biases."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                std = 0.02 / math.sqrt(2 * LAYERS) if name.endswith("out.weight") else 0.02
                nn.init.normal_(weight, std=std)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean nats per token."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(step: int) -> float:
    """Linear warm-up, then half a cosine."""
    if step < WARMUP:
        return PEAK * (step + 1) / (WARMUP + 1)
    spent = (step - WARMUP) / (STEPS - WARMUP)
    return FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(math.pi * spent))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW; matrices decay, norms do not."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": DECAY},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.99))


def trained(model: ReferenceGPT, text: Tensor, steps: int) -> float:
    """Seconds to train the model."""
    optimizer, offsets = optimizer_of(model), torch.arange(CONTEXT + 1)
    began = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        windows = text[torch.randint(len(text) - CONTEXT, (BATCH, 1)) + offsets]
        model(windows[:, :-1], windows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - began


@torch.no_grad()
def validation_loss(model: ReferenceGPT, text: Tensor) -> float:
    """Nats per character over the whole text, in windows side by side."""
    total = 0.0
    for start in range(0, len(text) - 1, CONTEXT * BATCH):
        piece = text[start : start + CONTEXT * BATCH + 1]
        whole = (len(piece) - 1) // CONTEXT * CONTEXT
        for first, last in ((0, whole), (whole, len(piece) - 1)):
            if last > first:
                rows = (last - first) // CONTEXT or 1
                inputs, targets = piece[first:last], piece[first + 1 : last + 1]
                loss = model(inputs.view(rows, -1), targets.view(rows, -1))
                total += float(loss) * (last - first)
    return total / (len(text) - 1)


def main() -> None:
    """Train, validate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--steps", type=int, default=STEPS, help="of the recipe's 2000")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(given.threads)
    train, val = (
        torch.from_numpy(np.load(given.data_dir / f"{part}.npy").astype(np.int64))
        for part in ("train", "val")
    )
    model = ReferenceGPT(int(torch.cat([train, val]).max()) + 1)
    seconds = trained(model, train, given.steps)
    report = {
        "seconds": seconds,
        "steps": given.steps,
        "tokens": given.steps * BATCH * CONTEXT,
        "val_loss": validation_loss(model, val),
        "params": sum(weight.numel() for weight in model.parameters()),
    }
    print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    main()
