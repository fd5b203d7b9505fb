"""Own choices around attention: positions, norm, block, optimizer, task, text, metric and more.

    P=examples/around_attention.py
    mlx-attn train --plugin $P --preset nano --position half --norm dyt --activation swish
    mlx-attn train --plugin $P --preset nano --residual parallel
    mlx-attn train --plugin $P --preset nano --optimizer lion --lr 3e-4 --metric top5
    mlx-attn train --plugin $P --data reverse --steps 20

`half` rotates half of each head (GPT-NeoX, arXiv:2204.06745), `sinusoids` is the original
transformer's (arXiv:1706.03762), `dyt` is Dynamic Tanh (arXiv:2503.10622), `parallel` is the block
of GPT-J, `rezero` is arXiv:2003.04887, and Lion is arXiv:2302.06675.
"""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np

from mlx_attn.attention.layer import choice
from mlx_attn.text.tasks import Documents


def angles(positions, width):
    return positions[:, None] * 10000.0 ** (-mx.arange(0, width, 2) / width)  # [T, width / 2]


@choice("position", "half", "RoPE on the first half of each head")
def half(a, y, positions):
    first, second, rest = y.split([y.shape[-1] // 4, y.shape[-1] // 2], axis=-1)
    turns = angles(positions, 2 * first.shape[-1]).astype(y.dtype)
    cos, sin = mx.cos(turns), mx.sin(turns)
    return mx.concatenate([first * cos - second * sin, first * sin + second * cos, rest], axis=-1)


@choice("position", "sinusoids", "x_i + (sin(i f), cos(i f))", at="input")
def sinusoids(c, positions):
    turns = angles(positions, c.emb_dim)
    return mx.concatenate([mx.sin(turns), mx.cos(turns)], axis=-1)


@choice("norm", "dyt", "tanh(a x) * weight + bias")
class DynamicTanh(nn.Module):
    """A norm without statistics."""

    def __init__(self, c):
        super().__init__()
        self.a, self.weight, self.bias = mx.array(0.5), mx.ones(c.emb_dim), mx.zeros(c.emb_dim)

    def __call__(self, x):
        """Return the bounded stream."""
        return mx.tanh(self.a * x) * self.weight + self.bias


@choice("activation", "swish", "h sigmoid(h)")
def swish(h):
    return h * mx.sigmoid(h)


@choice("residual", "parallel", "x + att(norm1 x) + ff(norm1 x)")
def parallel(x, attention, feed_forward, norm1, norm2):
    y = norm1(x)
    return x + attention(y) + feed_forward(y)


@choice("residual", "rezero", "x + a att(x), then x + b ff(x), a and b trained from 0")
class ReZero(nn.Module):
    """A block without norms that starts as the identity."""

    def __init__(self, c):
        super().__init__()
        self.a, self.b = mx.zeros(1), mx.zeros(1)

    def __call__(self, x, attention, feed_forward, norm1, norm2):
        """Return the stream after both layers."""
        x = x + self.a * attention(x)
        return x + self.b * feed_forward(x)


@choice("optimizer", "lion", "W - lr (sign(u) + decay W)")
def lion(c):
    return optim.Lion(c.lr, [c.beta1, c.beta2], c.weight_decay)


@choice("data", "reverse", "ten letters, then the same backwards", length=20, steps=200)
def reverse(random, count):
    letters = random.integers(0, 8, (count, 10))
    places = np.concatenate([letters, letters[:, ::-1]], axis=1)
    answers = np.zeros(places.shape, bool)
    answers[:, 10:] = True
    return Documents("abcdefgh", places, answers, answers, np.zeros(places.shape))


@choice("data", "counting", "numbers from 0 to 999")
def counting():
    for number in range(1000):
        yield f"{number}, "


@choice("metric", "top5", "the share of tokens that are among the five likeliest")
def top5(logits, targets):
    right = mx.take_along_axis(logits, targets[..., None], axis=-1)
    return (logits > right).sum(axis=-1) < 5
