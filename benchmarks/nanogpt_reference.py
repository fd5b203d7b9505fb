"""Train nanoGPT's laptop setting in PyTorch, as the reference of `speedrun.py`.

A GPT of 4 layers, 4 heads, width 128 and context 64 on the characters of tiny-shakespeare: GPT-2's
block without biases, a head tied to the embedding, AdamW, 2000 steps of 12 sequences. It follows
the settings that https://github.com/karpathy/nanoGPT gives for a laptop; the code is our own.

    python benchmarks/nanogpt_reference.py --data-dir CORPUS --threads 2 --seed 1337

CORPUS is a folder with the token ids in train.npy and val.npy. To give the model more favourable
settings, change the peak learning rate (--lr) or the length (--recipe-steps), or schedule by the
clock (--minutes). Prints one JSON object.
"""

# PyTorch is not a dependency: only this file imports it.
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
PEAK, FLOOR, WARMUP, DECAY, CLIP = 1e-3, 0.1, 100, 0.1, 1.0


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
    """Attention and feed-forward, each with a norm before it and a shortcut around it."""

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
        """Return the mean loss in nats per token."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate_factor(step: int, spent: float) -> float:
    """Return the factor: linear warm-up, then half a cosine over the rest of the training."""
    if step < WARMUP:
        return (step + 1) / (WARMUP + 1)
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * spent))


def optimizer_of(model: nn.Module, peak: float) -> torch.optim.Optimizer:
    """Return AdamW with weight decay on matrices but not on norms."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": DECAY},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.99))


def trained(model: ReferenceGPT, text: Tensor, given: argparse.Namespace) -> tuple[int, float]:
    """Train the model; return the number of steps and the seconds that they took."""
    optimizer, offsets = optimizer_of(model, given.lr), torch.arange(CONTEXT + 1)
    began, step, seconds = time.perf_counter(), 0, 0.0
    while seconds < 60 * given.minutes if given.minutes else step < given.steps:
        by_steps = max(0, step - WARMUP) / max(1, given.recipe_steps - WARMUP)
        spent = seconds / (60 * given.minutes) if given.minutes else by_steps
        for group in optimizer.param_groups:
            group["lr"] = given.lr * learning_rate_factor(step, spent)
        windows = text[torch.randint(len(text) - CONTEXT, (BATCH, 1)) + offsets]
        model(windows[:, :-1], windows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, seconds = step + 1, time.perf_counter() - began
    return step, seconds


@torch.no_grad()
def validation_loss(model: ReferenceGPT, text: Tensor) -> float:
    """Return the nats per character over the whole text, in adjacent windows."""
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
    """Train, validate, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--steps", type=int, default=STEPS, help="to take of the recipe's")
    parser.add_argument("--recipe-steps", type=int, default=STEPS, help="the schedule's length")
    parser.add_argument("--minutes", type=float, default=0.0, help="instead of steps")
    parser.add_argument("--lr", type=float, default=PEAK)
    parser.add_argument("--time-only", action="store_true", help="without validation")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(given.threads)
    train, val = (
        torch.from_numpy(np.load(given.data_dir / f"{part}.npy").astype(np.int64))
        for part in ("train", "val")
    )
    model = ReferenceGPT(int(torch.cat([train, val]).max()) + 1)
    steps, seconds = trained(model, train, given)
    report = {
        "seconds": seconds,
        "steps": steps,
        "tokens": steps * BATCH * CONTEXT,
        "val_loss": None if given.time_only else validation_loss(model, val),
        "params": sum(weight.numel() for weight in model.parameters()),
    }
    print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    main()
