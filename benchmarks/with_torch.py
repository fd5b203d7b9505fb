"""Run `floors.py --peers` with PyTorch as another peer, on the GPU if PyTorch has one.

    pip install torch
    python benchmarks/with_torch.py --preset tiny --part train

The model is the book's, in PyTorch: pre-norm blocks, fused attention, GELU, AdamW.
"""

import importlib
import sys
from typing import Any

import floors
import peers

from mlx_attn.bench.speed import Timed
from mlx_attn.model.config import GPTConfig
from mlx_attn.training.config import TrainConfig


def torch_step(config: GPTConfig, training: TrainConfig, compiled: bool = False) -> Timed:
    """Return a training step: loss, gradients, clipping and AdamW, in one kernel on CUDA."""
    torch: Any = importlib.import_module("torch")
    device = device_of(torch)
    model = _model(torch, config).to(device)
    how = {"fused": True} if device == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, training.beta2), **how)
    shape = (training.batch_size, config.context_length + 1)
    windows = torch.randint(0, config.vocab_size, shape, device=device)
    mixed = torch.autocast(device, torch.bfloat16, enabled=training.dtype == "bfloat16")

    def mean_loss(inputs: Any, targets: Any) -> Any:
        with mixed:
            logits = model(inputs)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets)

    forward = torch.compile(mean_loss) if compiled else mean_loss

    def run() -> None:
        loss = forward(windows[:, :-1], windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        loss.item()

    return run


def device_of(torch: Any) -> str:
    """Return the GPU, or the processor."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _model(torch: Any, config: GPTConfig) -> Any:
    """Return the book's GPT."""
    nn, C, H = torch.nn, config.emb_dim, config.n_heads

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(C, 3 * C, bias=config.qkv_bias)
            self.out_proj = nn.Linear(C, C)

        def forward(self, x: Any) -> Any:
            B, T, _ = x.shape
            q, k, v = self.qkv(x).view(B, T, 3, H, C // H).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out_proj(y.transpose(1, 2).reshape(B, T, C))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
            self.att = Attention()
            up, down = nn.Linear(C, config.hidden_dim), nn.Linear(config.hidden_dim, C)
            self.ff = nn.Sequential(up, nn.GELU(approximate="tanh"), down)

        def forward(self, x: Any) -> Any:
            x = x + self.att(self.norm1(x))
            return x + self.ff(self.norm2(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok_emb = nn.Embedding(config.vocab_size, C)
            self.pos_emb = nn.Embedding(config.context_length, C)
            self.blocks = nn.Sequential(*[Block() for _ in range(config.n_layers)])
            self.norm = nn.LayerNorm(C)
            self.head = nn.Linear(C, config.vocab_size, bias=False)

        def forward(self, tokens: Any) -> Any:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.tok_emb(tokens) + self.pos_emb(places)
            return self.head(self.norm(self.blocks(x)))

    return Model()


if __name__ == "__main__":
    peers.PEERS.append(peers.Peer("PyTorch", "train", torch_step, peers.ENCODER, "torch"))
    floors.command(["--peers", *sys.argv[1:]])
