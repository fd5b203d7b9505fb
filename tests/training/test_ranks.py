"""Two processes that train together do what one does alone with the whole batch."""

import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.machine import messages
from mlx_attn.run_directory import open_run
from mlx_attn.training import step
from mlx_attn.training.distributed import SINGLE_PROCESS, Distributed, init_distributed
from mlx_attn.training.events import Ended
from mlx_attn.training.loop import train

SCRIPT = Path(__file__).parent / "pair.py"
TEXT = "the red cat sat on a mat. an old dog sat by the wet door. the cat saw the dog. "
PATIENCE = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "text.txt").write_text(TEXT * 12)
    (folder / "other.txt").write_text(TEXT[::-1] * 12)
    return folder


@pytest.fixture(scope="module")
def pair(folder, ring) -> list[dict[str, Any]]:
    """What came of all trainings and exchanges on rank 0 and rank 1."""
    return outcomes(folder, ring)


def outcomes(folder: Path, ring, *arguments: str) -> list[dict[str, Any]]:
    """What two processes that run the script leave."""
    ranks, hosts = [], str(ring(2))
    for rank in range(2):
        places = {"MLX_HOSTFILE": hosts, "MLX_RANK": str(rank)}
        environment = {**os.environ, **places, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPT), str(folder), *arguments]
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        ends = [process.communicate(timeout=PATIENCE)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], ends
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script, for the same trainings in one process."""
    found = importlib.util.spec_from_file_location("pair", SCRIPT)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        *("adamw", "muon", "parts", "overlapped"),
        pytest.param("compiled", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_have_the_losses_of_one_with_the_joined_batch(pair, script, folder, ring, name):
    """Also if gradients are sent during the backward pass, and if steps are compiled."""
    changes = script.KINDS[name] | {"compile": "off"}
    alone = script.outcome(script.trainer_of(script.corpus_of(folder), SINGLE_PROCESS, **changes))
    both = pair if name in pair[0] else outcomes(folder, ring, name)
    assert both[0][name] == both[1][name]
    for ours in (rank[name] for rank in both):
        assert len(ours["losses"]) == script.RECIPE["steps"]
        assert ours["losses"] == pytest.approx(alone["losses"], abs=1e-5)
        assert ours["val_losses"] == pytest.approx(alone["val_losses"], abs=1e-5)


@pytest.fixture
def small_messages(monkeypatch):
    monkeypatch.setattr(messages, "MESSAGE", 32)
    monkeypatch.setattr(messages, "ONE_MESSAGE", 0)


def test_the_last_layers_gradients_are_sent_first(small_messages):
    tree = {"layers": [{"w": mx.full(4, float(i)), "b": mx.full(1, i + 0.5)} for i in range(3)]}
    sent: list[list[Any]] = []

    def average(message: list[mx.array]) -> list[mx.array]:
        sent.append([array[0].item() for array in message])
        return [array + 10 for array in message]

    averaged = messages.by_message(tree, average)
    assert sent == [[2.5, 2, 1.5, 1], [0.5, 0]]
    assert [layer["w"][0].item() for layer in averaged["layers"]] == [10, 11, 12]


def test_gradients_go_in_one_message_or_in_few(small_messages, monkeypatch):
    counts = [len([*messages.messages([mx.ones(8)] * n)]) for n in range(1, 100)]
    assert max(counts) == messages.MOST_MESSAGES
    monkeypatch.undo()
    tree = [mx.ones(2**18)] * 4  # a million weights
    assert [len(message) for message in messages.messages(tree)] == [4]
    assert len([*messages.messages([*tree, mx.ones(1)])]) > 1


def test_what_is_evaluated_first_needs_no_gradient_of_an_earlier_layer(small_messages, gpu_path):
    gradients = {"first": mx.cos(mx.ones(8)), "second": mx.sin(mx.ones(8))}
    averaged = messages.by_message(gradients, lambda message: [*map(mx.exp, message)])
    needed = []
    for array in messages.sending_order(averaged):
        # The operations before an array that is still to be computed.
        graph = io.StringIO()
        mx.export_to_dot(graph, array)
        needed.append([name for name in ("Cos", "Sin", "Exp") if f'"{name}"' in graph.getvalue()])
    assert needed == [["Sin", "Exp"], ["Cos", "Exp"]]


class Sending(Distributed):
    """A rank that averages with nobody, and keeps in which order it would."""

    def sending_order(self, averaged: Any) -> list[mx.array]:
        self.order = [message[0] for message in messages.messages(averaged)]
        return self.order


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_begins_its_messages_one_by_one(
    small_messages, monkeypatch, script, folder, accumulate
):
    ranks, begun = Sending(), list[int]()
    settings = {"compile": "off", "accumulate": accumulate}
    trainer = script.trainer_of(script.corpus_of(folder), ranks, **settings)
    monkeypatch.setattr(step.mx, "async_eval", lambda *arrays: begun.append(id(arrays[0])))
    trainer.step(trainer.starts())
    order = [*map(id, ranks.order)]
    assert len(order) > 5
    assert begun[-len(order) :] == order


def test_exchanges(pair):
    said = [{"said": "é"}, {"said": "é" * 100}]
    expected = {"gather": said, "first": 7, "sum": [2, 10], "broadcast": 3, "average": 0.5}
    shares, parts = [[0, 2, 4], [1, 3]], [[0, 1], [2, 3]]
    for rank, ours in enumerate(place["exchanges"] for place in pair):
        own = {"rank": [rank, 2], "share": shares[rank], "part": parts[rank]}
        assert ours == {**expected, **own, "drawn": ours["drawn"]}
    assert pair[0]["exchanges"]["drawn"] != pair[1]["exchanges"]["drawn"]


def test_ranks_end_together_and_go_on_bit_for_bit_with_rank_0_s_checkpoint_alone(pair):
    """One rank was interrupted; two others had a clock of their own."""
    for name in ("straight", "resumed", "minutes"):
        assert pair[0][name] == pair[1][name], name
    assert pair[0]["minutes"]["end"][0][1] == "time"
    for ours in pair:
        assert ours["stopped"]["end"] == [[4, "interrupted"]]
        losses = ours["stopped"]["losses"] + ours["resumed"]["losses"]
        assert losses == ours["straight"]["losses"]
        assert ours["resumed"]["weights"] == ours["straight"]["weights"]


def test_one_rank_can_go_on_with_what_two_saved(pair, script, folder):
    trainer = script.trainer_of(script.corpus_of(folder), SINGLE_PROCESS, **script.NOISY)
    trainer.resume(open_run(folder / "noisy"))
    *_, ended = train(trainer)
    assert isinstance(ended, Ended)
    assert ended.steps == script.NOISY["steps"]


def test_ranks_with_different_texts_are_refused(pair):
    for ours in pair:
        assert ours["refusal"].startswith("rank 1 has another text than rank 0")


@pytest.mark.parametrize(("size", "sent"), [(1, 0), (2, 400), (3, 533), (4, 600)])
def test_a_ring_sends_every_part_but_one_twice(size, sent):
    ranks = Distributed()
    ranks.size = size
    assert ranks.sent_bytes({"a": mx.zeros(60), "b": [mx.zeros((4, 10))]}) == sent


def test_a_batch_that_cannot_be_shared_is_refused_with_the_numbers():
    three = Distributed()
    three.size = 3
    with pytest.raises(ConfigError, match=r"batch_size=8 .* by 3 ranks: .* such as 6"):
        three.check_divides(8)


@pytest.mark.parametrize(
    ("rank", "hosts", "message"),
    [
        ("1", None, "this is rank 1, and the addresses of the others are missing"),
        ("0", "not JSON", "the ranks cannot be connected"),
    ],
)
def test_ranks_that_cannot_be_connected_are_refused(monkeypatch, tmp_path, rank, hosts, message):
    monkeypatch.delenv("MLX_HOSTFILE", raising=False)
    monkeypatch.delenv("MLX_RANK", raising=False)
    assert init_distributed(1.0, lambda message: None) is SINGLE_PROCESS
    monkeypatch.setenv("MLX_RANK", rank)
    if hosts:
        (tmp_path / "hosts.json").write_text(hosts)
        monkeypatch.setenv("MLX_HOSTFILE", str(tmp_path / "hosts.json"))
    with pytest.raises(RunError, match=message):
        init_distributed(1.0, lambda message: None)
