"""`--log-to`: the numbers of a training where users keep theirs."""

import sys
from types import SimpleNamespace

import pytest

from mlx_attn.errors import RunError
from mlx_attn.training.events import Started, Stepped
from mlx_attn.training.loggers import LOGGERS, check_logger, logging_to, values_of
from mlx_attn.training.loop import RunRecorder, train


@pytest.fixture
def service(monkeypatch):
    """Stands in for wandb and trackio: notes what it is told."""
    told = []
    module = SimpleNamespace(
        init=lambda **given: told.append(("init", given)),
        log=lambda values, step: told.append((step, values)),
        finish=lambda: told.append("finish"),
    )
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, module)
    return told


@pytest.fixture
def writer(monkeypatch):
    """Stands in for tensorboardX."""
    told = []

    class SummaryWriter:
        def __init__(self, folder):
            told.append(folder)

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=SummaryWriter))
    return told


def trained(trainer, name, letters):
    with logging_to(name, trainer.run) as trainer.log:
        recorder = RunRecorder(trainer, letters.tokenizer)
        return [recorder(event) or event for event in train(trainer)]


def test_a_step_s_numbers_have_names_and_its_plan_has_none():
    step = Stepped(
        **{"step": 2, "steps": 6, "tokens": 64, "loss": 1.5, "grad_norm": 0.1, "lr": 0.01},
        **{"tok_s": 9.0, "peak_memory": 7, "seconds": 3.0, "seconds_left": 4.0},
    )
    assert values_of(step) == {
        **{"train/tokens": 64, "train/loss": 1.5, "train/grad_norm": 0.1, "train/lr": 0.01},
        **{"train/tok_s": 9.0, "train/peak_memory": 7, "train/seconds": 3.0},
    }
    facts = {"variant": "standard", "step": 0, "steps": 6, "params": 1, "tokens_per_step": 1}
    assert values_of(Started(**facts, run="")) == {}


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_gets_every_loss_at_its_step(name, learner, letters, service):
    trainer = learner()
    losses = {e.step: e.loss for e in trained(trainer, name, letters) if isinstance(e, Stepped)}
    (_, given), *told, last = service
    assert (given["project"], given["name"]) == ("mlx_attn", "run")
    found = {step: values["train/loss"] for step, values in told if "train/loss" in values}
    assert found == losses
    assert {step for step, values in told if "val/loss" in values} == {3, 6}
    assert last == "finish"


def test_tensorboard_s_files_lie_in_the_run(learner, letters, writer):
    trainer = learner()
    trained(trainer, "tensorboard", letters)
    assert writer[0] == str(trainer.run.path / "tensorboard")
    assert {told[0] for told in writer[1:-1]} >= {"train/loss", "val/loss", "val/bits_per_byte"}
    assert writer[-1] == "closed"


def test_nothing_is_imported_unless_it_is_named(learner, letters, monkeypatch):
    for module in ("wandb", "trackio", "tensorboardX"):
        monkeypatch.setitem(sys.modules, module, None)
    check_logger("")
    assert trained(learner(), "", letters)


@pytest.mark.parametrize("name", LOGGERS)
def test_what_is_not_installed_is_named_with_the_command(name, monkeypatch):
    for module in ("wandb", "trackio", "tensorboardX"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RunError, match="pip install"):
        check_logger(name)
