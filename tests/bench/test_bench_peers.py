"""Peers do the work that ours does."""

import mlx.core as mx
import pytest

from mlx_attn.arrays import count_parameters
from mlx_attn.bench.peers import ENCODER, PEERS, EncoderModel, Peer, beside_peers
from mlx_attn.model.config import config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.training.config import TrainConfig

SIZES = {"vocab_size": 40, "context_length": 16, "emb_dim": 16, "n_heads": 2, "n_layers": 2}
CONFIG = config_from({**SIZES, **ENCODER})
RECIPE = TrainConfig(steps=1, batch_size=2)


def test_the_encoder_has_our_weights_but_for_the_biases_of_its_output():
    # MLX's attention has one bias flag for all four maps, and ours has a bias in out_proj.
    assert count_parameters(GPT(CONFIG)) - count_parameters(EncoderModel(CONFIG)) == 2 * 16


def test_the_encoder_sees_no_later_token():
    model = EncoderModel(CONFIG)
    tokens = mx.array([[1, 2, 3, 4]])
    changed = mx.array([[1, 2, 9, 9]])
    assert mx.allclose(model(tokens)[:, :2], model(changed)[:, :2], atol=1e-6)


@pytest.mark.parametrize("peer", [p for p in PEERS if p.installed], ids=lambda p: p.name)
def test_a_peer_is_measured_beside_ours(peer):
    (found,) = beside_peers(CONFIG, RECIPE, [peer], 0.0)
    assert found.peer == peer.name
    assert min(found.ours.median, found.theirs.median, found.faster.median) > 0


def test_what_is_not_installed_is_left_out():
    absent = Peer("absent", "train", lambda config, training: lambda: None, {}, "no_such_package")
    assert list(beside_peers(CONFIG, RECIPE, [absent], 0.0)) == []
