"""Other programs that do the same work with a model of the same sizes, timed in turns with ours.

A peer says which settings make our model compute what its does: the same norm, activation, biases
and positions. What is not installed is left out.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_attn.lab.bench.peers.decoder import mlx_lm_decoding
from mlx_attn.lab.bench.peers.encoder import encoder_step
from mlx_attn.lab.bench.timing import Spread, Subject, in_turns
from mlx_attn.lab.bench.work import NEW_TOKENS, PROMPT, WORKS
from mlx_attn.model import GPTConfig
from mlx_attn.model.config import BLOCKS, config_from
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.memory import keep_buffers

_MAPS = {"score": "separate", "value": "linear", "output": "linear", "n_kv_heads": 0}
_BOOK: dict[str, Any] = {**BLOCKS["book"], **_MAPS, "position": "learned", "drop_rate": 0.0}
ENCODER = _BOOK | {"qkv_bias": False, "tied_head": False}
GPT2 = _BOOK | {"qkv_bias": True, "tied_head": True}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another program.

    Attributes:
        name: For people.
        work: The kind of work it does, a key of `WORKS`.
        make: The same work as `WORKS[work]` of the same configuration, by its means.
        like: Settings with which our model computes the same.
        package: What has to be installed.
    """

    name: str
    work: str
    make: Callable[[GPTConfig, TrainConfig], Subject]
    like: dict[str, Any] = field(default_factory=dict)
    package: str = "mlx"

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        return importlib.util.find_spec(self.package) is not None


PEERS: tuple[Peer, ...] = (
    Peer("mlx.nn.TransformerEncoder", "train", encoder_step, ENCODER),
    Peer("mlx-lm's gpt2", "decode", mlx_lm_decoding, GPT2, "mlx_lm"),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours and a peer at the same work.

    Attributes:
        work: train, forward or decode.
        peer: Its name.
        ours: Our tokens per second.
        theirs: The peer's.
        faster: Our tokens per second divided by the peer's.
    """

    work: str
    peer: str
    ours: Spread
    theirs: Spread
    faster: Spread


def beside_peers(
    config: GPTConfig,
    training: TrainConfig,
    peers: Sequence[Peer],
    seconds: float,
) -> Iterator[Comparison]:
    """Measure the installed ones of some peers, each in turns with ours.

    Args:
        config: Sizes; the peer decides the rest. Decoding has room for all its tokens.
        training: The batch size; the optimizer is AdamW on both sides.
        peers: Those to measure.
        seconds: About how long each one may take.
    """
    keep_buffers()
    training = replace(training, optimizer="adamw", dtype="float32", accumulate=1)
    for peer in peers:
        if peer.installed:
            yield _comparison(peer, _matched(config, peer), training, seconds)


def _matched(config: GPTConfig, peer: Peer) -> GPTConfig:
    room = {"context_length": max(config.context_length, PROMPT + NEW_TOKENS)}
    return config_from(config.as_dict() | peer.like | (room if peer.work == "decode" else {}))


def _comparison(peer: Peer, config: GPTConfig, training: TrainConfig, seconds: float) -> Comparison:
    ours = WORKS[peer.work](config, training)
    subjects = {"ours": ours.run, "theirs": peer.make(config, training)}
    timings = in_turns(subjects, seconds)
    tokens = float(ours.tokens)
    return Comparison(
        peer.work,
        peer.name,
        timings["ours"].spread.inverse(tokens),
        timings["theirs"].spread.inverse(tokens),
        timings["theirs"].over(timings["ours"]),
    )
