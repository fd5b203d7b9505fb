from dataclasses import replace

import numpy as np
import pytest

from mlx_attn.arrays import load_arrays, named_arrays, save_arrays
from mlx_attn.errors import RunError
from mlx_attn.run_directory import Run
from mlx_attn.training.evaluation import Evaluation


@pytest.fixture
def saved(trainer, tmp_path):
    """A trainer after two steps, and its run with a checkpoint."""
    made = trainer(run=tmp_path / "run")
    for _ in range(2):
        made.launch_step()
    made.progress.best = Evaluation(val_loss=1.5, abilities={"copy": 0.1})
    made.save()
    return made, made.run


def test_a_file_of_arrays_says_that_it_is_mlx_s_beside_its_own_facts(tmp_path):
    save_arrays(tmp_path / "model.safetensors", {}, {"note": "seven"})
    assert load_arrays(tmp_path / "model.safetensors") == ({}, {"format": "mlx", "note": "seven"})


def test_the_best_validation_comes_back_and_what_a_later_version_adds_is_ignored(trainer, saved):
    (made, run), other = saved, trainer()
    arrays, facts = load_arrays(run.checkpoint)
    facts["progress"] = facts["progress"].replace("{", '{"new": 1, ', 1)
    save_arrays(run.checkpoint, arrays, facts)
    other.resume(run)
    assert other.progress == made.progress


def refused(run, made) -> str:
    """The one line that refuses the file, which changes no weight."""
    before = {name: np.array(array) for name, array in named_arrays(made.model).items()}
    with pytest.raises(RunError) as error:
        made.resume(run)
    for name, array in named_arrays(made.model).items():
        assert np.array_equal(np.array(array), before[name]), name
    message = str(error.value)
    assert message.startswith(f"{run.checkpoint}: ")
    assert "\n" not in message
    return message


def test_a_damaged_file_is_refused(trainer, saved):
    _, run = saved
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-20])
    assert "cannot be read" in refused(run, trainer())


def test_a_missing_file_or_weights_alone_are_refused(trainer, tmp_path):
    run, made = Run(tmp_path, {}), trainer()
    assert "no such file" in refused(run, made)
    save_arrays(run.checkpoint, named_arrays(made.model), {})
    assert "no checkpoint" in refused(run, made)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tied_head": True}, "the model has no place for out_head.weight"),
        ({"variant": "merged"}, "and it lacks trf_blocks.0.att.S.weight"),
        ({"emb_dim": 32}, ".weight is (16,), and its configuration asks for (32,)"),
        ({"optimizer": "muon"}, "another optimizer"),
        ({"lr": 0.5}, "and not with 0.5, which config.json has"),
    ],
)
def test_the_file_of_another_configuration_is_refused(trainer, saved, settings, message):
    assert message in refused(saved[1], trainer(**settings, seed=4))


def test_the_checkpoint_of_another_text_is_refused(trainer, saved):
    made = trainer()
    made.corpus = replace(made.corpus, digest="another")
    assert "not with another, which config.json has" in refused(saved[1], made)
