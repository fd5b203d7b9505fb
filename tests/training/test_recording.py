"""Records of a training: samples in its run, and with `--log-to` its numbers elsewhere."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_attn.errors import RunError
from mlx_attn.probe.tracking import save_snapshot
from mlx_attn.run_directory import Run
from mlx_attn.training.events import Stepped
from mlx_attn.training.recording import (
    LOGGERS,
    SAMPLE_TOKENS,
    logging_to,
    train_recorded,
    write_sample,
)


@pytest.fixture
def service(monkeypatch):
    """A fake wandb, trackio and tensorboardX that keeps all calls."""
    told = []
    writer = SimpleNamespace(
        add_scalar=lambda name, value, step: told.append((step, {name: value})),
        close=lambda: told.append("finish"),
    )
    module = SimpleNamespace(
        init=lambda **given: told.append(("init", given)),
        log=lambda values, step: told.append((step, values)),
        finish=lambda: told.append("finish"),
        SummaryWriter=lambda folder: told.append(("folder", folder)) or writer,
    )
    for name in ("wandb", "trackio", "tensorboardX"):
        monkeypatch.setitem(sys.modules, name, module)
    return told


@pytest.mark.parametrize("name", LOGGERS)
def test_a_service_gets_every_loss_at_its_step(name, trainer, service, tmp_path):
    made = trainer(run=tmp_path / "run", steps=6, log_every=2, eval_every=3)
    with logging_to(name, made.run) as log:
        events = list(train_recorded(made, log=log))
    losses = {e.step: e.loss for e in events if isinstance(e, Stepped)}
    (_, given), *told, last = service
    if name == "tensorboard":
        assert given == str(made.run.path / name)
    else:
        expected = {"project": "mlx_attn", "name": "run", "config": made.run.settings}
        assert given.items() >= expected.items()
    found = {step: values["train/loss"] for step, values in told if "train/loss" in values}
    assert found == losses
    assert {step for step, values in told if "val/loss" in values} == {3, 6}
    assert last == "finish"
    names = {key for _, values in told for key in values}
    assert {"train/tok_s", "train/lr", "train/grad_norm", "val/bits_per_byte"} < names
    assert not {"train/step", "train/seconds_left", "val/best"} & names


WRITES = {
    "best": lambda made: made.run.save_model(made.model),
    "last": lambda made: made.save(),
    "tracked": lambda made: save_snapshot(made.run, made.model, 1),
    "report": lambda made: made.run.add_report({}),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_directory_that_was_renamed_is_not_made_again(trainer, tmp_path, write):
    made = trainer(run=tmp_path / "run")
    made.run.path.rename(tmp_path / "other")
    with pytest.raises(RunError, match="run was removed or renamed: put it back, and resume it"):
        write(made)
    assert not made.run.path.exists()


def test_a_sample_has_its_length_and_is_the_same_again_without_dropout(trainer):
    made = trainer(drop_rate=0.5)
    (text,) = {write_sample(Run(Path("x"), {}), made) for _ in range(2)}
    assert len(text) == SAMPLE_TOKENS  # of a vocabulary without a newline
