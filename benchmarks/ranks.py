"""Measure the speed of several ranks on one machine, and the bytes that they send.

    python benchmarks/ranks.py [--preset tiny] [--ranks 1 2 4] [--steps 20] [--rounds 5]
                               [--megabits 100]

Alternates between one process with all cores and 2 or 4 processes with a core each, or a share of
one, all on the same batches. --megabits limits the connection between them to that many megabits
per second. Ranks are timed as in `train`, and also without exchanging gradients, to show the cost
of the exchange. Prints one Markdown table. It includes the bytes per rank that pass the loopback
device in a step, and the bytes that `Distributed.sent_bytes` counts.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

WARM_UP = 3  # steps that are not measured
PAUSE = 0.005  # seconds
COLUMNS = ("ranks", "exchange", "tokens per second", "of one process", "sent", "counted")


def main() -> None:
    """Measure in interleaved rounds, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabits", type=float, default=0.0)
    given = parser.parse_args()
    if "MLX_RANK" in os.environ:
        sys.stdout.write(
            json.dumps(measured(given.preset, given.steps, os.environ["EXCHANGE"] == "yes"))
        )
        return
    ways = [(n, way) for n in given.ranks for way in (["yes", "no"] if n > 1 else ["no"])]
    found: dict[tuple[int, str], list[dict[str, float]]] = {key: [] for key in ways}
    for _ in range(given.rounds):
        for n, way in ways:
            found[n, way].append(launched(n, way, given.megabits))
    alone = [one["speed"] for one in found[1, "no"]]
    rows = [[str(n), way, *_row(records, alone)] for (n, way), records in found.items()]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines))


def _row(records: list[dict[str, float]], alone: list[float]) -> list[str]:
    """Return a row of medians over the rounds; ratios are computed within a round."""
    speeds = [one["speed"] for one in records]
    ratio = statistics.median(ours / one for ours, one in zip(speeds, alone, strict=True))
    sent = statistics.median(one["sent"] for one in records)
    speed = f"{statistics.median(speeds):,.0f}"
    return [speed, f"{ratio:.2f}", f"{sent / 1e6:.2f} MB", f"{records[0]['counted'] / 1e6:.2f} MB"]


def launched(n: int, exchange: str, megabits: float) -> dict[str, float]:
    """Launch `n` processes and return the result of rank 0."""
    with socket.create_server(("127.0.0.1", 0)) as one, tempfile.TemporaryDirectory() as folder:
        first = one.getsockname()[1]  # the ports after a free one are usually free
        places = range(first + 1, first + 1 + n)
        slow = {port: port + n for port in places} if megabits else {}
        cores = str(max(1, (os.cpu_count() or 1) // n))
        shared = os.environ | {"OPENBLAS_NUM_THREADS": cores, "EXCHANGE": exchange}
        shared |= {"SLOW": "1"} if slow else {}
        ranks = []
        with links(slow, megabits * 1e6 / 8):
            for rank, own in enumerate(places):
                hosts = [[f"127.0.0.1:{p if p == own else slow.get(p, p)}"] for p in places]
                file = Path(folder, f"{rank}.json")
                file.write_text(json.dumps(hosts))
                environment = shared | {"MLX_RANK": str(rank)}
                environment |= {"MLX_HOSTFILE": str(file)} if n > 1 else {}
                command = [sys.executable, *sys.argv]
                ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
            said = [rank.communicate()[0] for rank in ranks]
    return json.loads(said[0])


@contextmanager
def links(ports: Mapping[int, int], rate: float) -> Iterator[None]:
    """Relay between the port of each value and of its key, at `rate` bytes per second."""
    loop = asyncio.new_event_loop()
    for place, port in ports.items():
        met = partial(_joined, place, rate)
        loop.run_until_complete(asyncio.start_server(met, "127.0.0.1", port))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


async def _joined(
    place: int, rate: float, near: asyncio.StreamReader, back: asyncio.StreamWriter
) -> None:
    while (made := await _reached(place)) is None:
        await asyncio.sleep(PAUSE)
    far, on = made
    await asyncio.gather(_flow(near, on, rate), _flow(far, back, rate), return_exceptions=True)


async def _reached(place: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    with suppress(ConnectionRefusedError):  # that rank is not listening yet
        return await asyncio.open_connection("127.0.0.1", place)
    return None


async def _flow(source: asyncio.StreamReader, sink: asyncio.StreamWriter, rate: float) -> None:
    loop, free = asyncio.get_running_loop(), 0.0
    while piece := await source.read(2**16):
        free = max(free, loop.time() - PAUSE) + len(piece) / rate
        if free - loop.time() > PAUSE:  # shorter sleeps last too long
            await asyncio.sleep(free - loop.time())
        sink.write(piece)
        await sink.drain()
    sink.close()


def measured(preset: str, steps: int, exchange: bool) -> dict[str, float]:
    """Return the tokens per second of all ranks, and the bytes that each sends per step."""
    from mlx_attn.text.corpus import prepare
    from mlx_attn.training.config import resolve
    from mlx_attn.training.distributed import SINGLE_PROCESS, init_distributed
    from mlx_attn.training.trainer import Trainer

    ranks = SINGLE_PROCESS
    if "MLX_HOSTFILE" in os.environ:
        ranks = init_distributed(60.0, lambda message: os._exit(1))
    trainer = Trainer(resolve({"preset": preset}), prepare("tiny-shakespeare", "char", 65), ranks)
    if not exchange:
        vars(ranks)["average"] = lambda tree: tree
    for _ in range(WARM_UP):
        trainer.launch_step()[0].item()
    ranks.gather("here")
    before, began = _loopback_bytes(), time.perf_counter()
    for _ in range(steps):
        trainer.launch_step()[0].item()
    ranks.gather("here")
    seconds, sent = time.perf_counter() - began, _loopback_bytes() - before
    counted = ranks.sent_bytes(trainer.model.trainable_parameters())
    return {
        "speed": steps * trainer.tokens_per_step / seconds,
        "sent": sent / steps / ranks.size / (2 if "SLOW" in os.environ else 1),  # in and out
        "counted": counted if exchange else 0,
    }


def _loopback_bytes() -> int:
    """Return the bytes that the loopback device has sent, on Linux."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0


if __name__ == "__main__":
    main()
