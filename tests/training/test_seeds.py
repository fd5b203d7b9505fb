"""What each of the two seeds decides."""

import mlx.core as mx


def first_weights(trainer):
    return trainer.model.tok_emb.weight


def first_batch(trainer):
    return trainer.sampler.starts(trainer.config.seed, 0).tolist()


def test_the_weights_have_a_seed_of_their_own_where_one_is_given(trainer):
    assert not mx.array_equal(first_weights(trainer()), first_weights(trainer(init_seed=7)))
    assert first_batch(trainer()) == first_batch(trainer(init_seed=7))
    assert mx.array_equal(first_weights(trainer(seed=3)), first_weights(trainer(init_seed=3)))
