"""Gradients that ranks exchange: on a GPU during the backward pass, otherwise all at once after it.

The threads that send never sleep, so on processors they slow down the threads that compute. There,
sending during the backward pass pays on links of 100 megabits per second, and costs on fast ones.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from mlx_attn.arrays import named_arrays
from mlx_attn.machine.device import on_gpu

MESSAGE = 2**19  # bytes of gradients that are worth a message: fewer take as long to send
ONE_MESSAGE = 2**22
"""Bytes of gradients that are sent as one: a million weights. Every message crosses from the GPU to
the CPU and back, some 180 microseconds (github.com/ml-explore/mlx/issues/4438), more than a tiny
model saves by sending while it computes."""
MOST_MESSAGES = 16  # of one step: of a large model's gradients a message has more bytes


def average_gradients(tree: Any, group: mx.distributed.Group, stream: mx.Stream) -> Any:
    """Average arrays over the ranks: on a GPU message by message, else as one for up to 32 MB.

    `stream`, of the CPU, only sends messages.
    """
    if not on_gpu():
        return nn.average_gradients(tree, group)
    with mx.stream(stream):
        return by_message(
            tree, partial(nn.average_gradients, group=group, communication_stream=stream)
        )


def sending_order(averaged: Any) -> list[mx.array]:
    """Return the arrays to evaluate first, one by one, so that messages leave in order.

    Evaluating the first array of a message computes the whole message.
    """
    return [message[0] for message in messages(averaged)] if on_gpu() else []


def by_message(tree: Any, average: Callable[[list[mx.array]], list[mx.array]]) -> Any:
    """Average a tree's arrays, which are in the order of the layers, message by message."""
    averaged = [array for message in messages(tree) for array in average(message)]
    return tree_unflatten([*zip(named_arrays(tree), reversed(averaged), strict=True)])


def messages(tree: Any) -> Iterator[list[mx.array]]:
    """Yield a tree's arrays in messages, in the order of sending.

    Gradients are computed from the last layer to the first, so the last layers' gradients are sent
    while earlier layers compute theirs (Li and others, "PyTorch Distributed", 2020, section 3.2).
    """
    arrays = [*reversed(named_arrays(tree).values())]
    total = sum(array.nbytes for array in arrays)
    least = total if total <= ONE_MESSAGE else max(MESSAGE, -(-total // MOST_MESSAGES))
    held: list[mx.array] = []
    for array in arrays:
        held.append(array)
        if sum(each.nbytes for each in held) >= least:
            yield held
            held = []
    if held:
        yield held
