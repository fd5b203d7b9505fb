import numpy as np
import pytest

from mlx_attn.arrays import load_arrays, named_arrays, save_arrays
from mlx_attn.errors import RunError
from mlx_attn.training.checkpoint import load_checkpoint, save_checkpoint
from mlx_attn.training.evaluation import Evaluation


@pytest.fixture
def saved(trainer, tmp_path):
    """A trainer after two steps, and its checkpoint."""
    made, path = trainer(), tmp_path / "last.safetensors"
    for _ in range(2):
        made.launch_step()
    made.progress.best = Evaluation(val_loss=1.5, abilities={"copy": 0.1})
    save_checkpoint(path, made.model, made.optimizer, made.progress)
    return made, path


def restore(path, made):
    return load_checkpoint(path, made.model, made.optimizer)


def test_progress_weights_and_optimizer_come_back(trainer, saved):
    made, path = saved
    other = trainer(seed=9)
    assert restore(path, other) == made.progress
    for one, two in [(made.model, other.model), (made.optimizer.state, other.optimizer.state)]:
        for name, array in named_arrays(one).items():
            assert np.array_equal(np.array(array), np.array(named_arrays(two)[name])), name


def test_what_a_later_version_adds_to_the_progress_is_ignored(trainer, saved):
    made, path = saved
    arrays, facts = load_arrays(path)
    facts["progress"] = facts["progress"].replace("{", '{"new": 1, ', 1)
    save_arrays(path, arrays, facts)
    assert restore(path, trainer()).best == made.progress.best


def refused(path, made) -> str:
    with pytest.raises(RunError) as error:
        restore(path, made)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_a_missing_file(trainer, tmp_path):
    assert "no such file" in refused(tmp_path / "nothing.safetensors", trainer())


def test_a_truncated_file(trainer, saved):
    _, path = saved
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged or truncated" in refused(path, trainer())


def test_a_flipped_byte_in_the_data(trainer, saved):
    _, path = saved
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    assert "checksum does not match" in refused(path, trainer())


def test_a_flipped_digit_in_the_progress(trainer, saved):
    _, path = saved
    path.write_bytes(path.read_bytes().replace(rb"\"best_loss\": 1.5", rb"\"best_loss\": 0.5"))
    assert "checksum does not match" in refused(path, trainer())


def test_a_file_of_something_else(trainer, tmp_path):
    path = tmp_path / "last.safetensors"
    path.write_text("no tensors in here")
    assert "damaged or truncated" in refused(path, trainer())


def test_weights_alone(trainer, tmp_path):
    path, made = tmp_path / "model.safetensors", trainer()
    save_arrays(path, named_arrays(made.model), {})
    assert "no checkpoint" in refused(path, made)


@pytest.mark.parametrize("settings", [{"n_layers": 2}, {"emb_dim": 32}, {"variant": "merged"}])
def test_another_configuration(trainer, saved, settings):
    message = refused(saved[1], trainer(**settings))
    assert "belongs to a model of another configuration" in message


def test_another_optimizer(trainer, saved):
    assert "another optimizer" in refused(saved[1], trainer(optimizer="muon"))


def test_a_refused_checkpoint_changes_nothing(trainer, saved):
    made = trainer(n_layers=2, seed=4)
    before = {name: np.array(array) for name, array in named_arrays(made.model).items()}
    refused(saved[1], made)
    for name, array in named_arrays(made.model).items():
        assert np.array_equal(np.array(array), before[name]), name
