from contextlib import nullcontext

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.machine.device import gpu_path
from mlx_attn.training.batches import window_losses
from mlx_attn.training.config import resolve
from mlx_attn.training.trainer import Trainer

STEPS = 6


def losses(trainer, steps: int = STEPS) -> list[float]:
    return [float(trainer.launch_step()[0]) for _ in range(steps)]


def weights(trainer) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in named_arrays(trainer.model).items()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_loss_falls(trainer, optimizer):
    first, *_, last = losses(trainer(optimizer=optimizer, steps=60, lr=0.01), 60)
    assert last < 0.8 * first


def test_the_first_loss_is_that_of_the_windows_under_the_starting_weights(trainer, corpus):
    made = trainer()
    starts = made.sampler.starts(0, 0)
    windows = mx.array(corpus.train.tokens)[starts[:, None] + mx.arange(13)]
    logits = made.model(windows[:, :-1])
    expected = nn.losses.cross_entropy(logits, windows[:, 1:].astype(mx.int32), reduction="mean")
    assert losses(made, 1)[0] == pytest.approx(float(expected), abs=1e-6)


def test_micro_batches_make_the_step_of_one_batch_of_their_size(trainer):
    whole, parts = trainer(batch_size=8), trainer(batch_size=2, accumulate=4)
    starts = mx.array([3, 14, 15, 92, 65, 35, 89, 79])
    for made in (whole, parts):
        made.optimizer.schedule(1.0)
    (loss, norm), (part_loss, part_norm) = whole.step(starts), parts.step(starts)
    assert float(loss) == pytest.approx(float(part_loss), abs=1e-5)
    assert float(norm) == pytest.approx(float(part_norm), abs=1e-5)
    for name, weight in weights(whole).items():
        assert np.allclose(weight, weights(parts)[name], atol=1e-5), name


@pytest.mark.parametrize(
    "settings",
    [
        {"drop_rate": 0.2},  # as in all tests of compiled steps: g++ takes a second for each kernel
        pytest.param({"variant": "merged", "optimizer": "muon"}, marks=pytest.mark.slow),
        pytest.param({"accumulate": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_compiled_or_not_the_losses_are_the_same(trainer, settings):
    compiled, eager = (losses(trainer(compile=mode, **settings)) for mode in ("on", "off"))
    assert compiled == pytest.approx(eager, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"optimizer": "muon", "position": "alibi"}], ids=str)
def test_the_compiled_step_of_a_gpu_s_path_has_the_losses_of_a_processor_s(trainer, settings):
    expected = losses(trainer(compile="off", **settings))
    with gpu_path():
        assert losses(trainer(**settings)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mode", ["on", "off"])
def test_dropout_masks_differ_from_step_to_step(trainer, mode):
    made = trainer(drop_rate=0.2, compile=mode)
    made.optimizer.schedule(0.0)
    starts = mx.array([1, 2, 3, 4])
    drawn = {float(made.step(starts)[0]) for _ in range(3)}
    assert len(drawn) == 3


@pytest.mark.parametrize("mode", ["on", "off"])
def test_the_same_seed_gives_the_same_bits(trainer, mode):
    runs = [losses(trainer(drop_rate=0.2, compile=mode, seed=3)) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("path", [nullcontext, gpu_path])
def test_weights_that_are_set_between_steps_are_those_that_the_next_step_moves(trainer, path):
    """The optimizer keeps the weights end to end, and must notice that the model has others."""
    with path():
        first, second = trainer(seed=1), trainer(seed=2)
        first.step(mx.array([1, 2, 3, 4]))
        for made in (first, second):
            made.optimizer.schedule(0.0)
        first.model.update(second.model.trainable_parameters())
        for made in (first, second):
            made.step(mx.array([5, 6, 7, 8]))
        one, other = named_arrays(first.model), named_arrays(second.model)
    assert all(mx.array_equal(one[name], other[name]) for name in other)


def test_another_seed_gives_other_weights_and_batches(trainer):
    assert losses(trainer(seed=1), 1) != losses(trainer(seed=2), 1)


@pytest.mark.parametrize("mode", ["off", pytest.param("on", marks=pytest.mark.slow)])
def test_bfloat16_computes_over_float32_weights_and_states(trainer, mode):
    made = trainer(dtype="bfloat16", compile=mode)
    computed = losses(made)
    mx.eval(made.step.state)
    arrays = [
        *named_arrays(made.model).values(),
        *named_arrays(list(made.optimizer.state)).values(),
    ]
    kinds = {array.dtype for array in arrays if mx.issubdtype(array.dtype, mx.floating)}
    assert kinds == {mx.float32}
    exact = losses(trainer())
    assert computed == pytest.approx(exact, abs=0.05)
    assert computed != exact


@pytest.mark.slow
def test_bfloat16_learns_as_much_as_float32(corpus):
    """A short training of the preset nano, from 2.9 to 0.5 nats per token."""
    recipe = {"preset": "nano", "context_length": 32, "steps": 40, "eval_every": 0}
    found = []
    for dtype in ("bfloat16", "float32"):
        settings = resolve({**recipe, "tokenizer": "char"}, {"dtype": dtype, "compile": "off"})
        made = Trainer(settings, corpus)
        losses(made, 40)
        found.append(made.evaluate()[0].val_loss)
    assert found[0] == pytest.approx(found[1], abs=0.005)
    assert found[1] < 0.6


def test_small_updates_are_not_lost_in_bfloat16(trainer):
    made = trainer(dtype="bfloat16", lr=1e-6)
    before = weights(made)
    losses(made, 1)
    name = "trf_blocks.0.norm1.weight"
    assert np.abs(weights(made)[name] - before[name]).max() > 0


def test_the_norm_is_reported_before_clipping(trainer):
    free, clipped = trainer(clip=0.0), trainer(clip=1e-3)
    norms = [float(made.launch_step()[1]) for made in (free, clipped)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    assert norms[0] > 1e-3


def test_losses_are_float32_nats_of_each_token(trainer):
    model = trainer().model
    model.set_dtype(mx.bfloat16)
    windows = mx.array([[1, 2, 3, 4]])
    rows = window_losses(model, windows)
    assert (rows.shape, rows.dtype) == ((1, 3), mx.float32)


def test_dropout_is_that_of_seed_and_step_whatever_else_draws(trainer):
    one, other = (trainer(drop_rate=0.2, seed=3, compile="off") for _ in range(2))
    first = losses(one, 3)
    found = []
    for _ in range(3):
        mx.random.uniform()
        found += losses(other, 1)
    assert found == first
