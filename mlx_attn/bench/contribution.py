"""A machine's figures in one file, made by a fixed recipe, for the table of docs/machines.md.

A file names the chip and the system, and no user, host, folder or serial number. Its digest covers
its content, and `weights` is a digest that every machine must get for the same code.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import msgspec

from mlx_attn.bench.kernels import kernel_counts
from mlx_attn.bench.speed import bench, step_graph, train_step, variant_setups
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.machine import facts
from mlx_attn.machine.device import devices, on_device
from mlx_attn.records import content_digest, read_record
from mlx_attn.verify.checks import CHECKS, Check, run
from mlx_attn.verify.models import seed_digest
from mlx_attn.verify.tolerance import measured_rounding

SCHEMA = 1
"""Version of the file's keys."""

VARIANTS, WORKS = ("standard", "merged"), ("train", "decode")
RECIPE: Mapping[str, Mapping[str, Any]] = {"tiny": {}, "macbook": {}, "small": {"batch_size": 8}}
"""By preset: the settings that differ from it. A step of `small` at 32 texts takes a processor
seconds."""

SECONDS = 25.0
"""About how long each preset is measured on each device."""


Positive = Annotated[float, msgspec.Meta(gt=0)]


class Speed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The speed of one kind of work of one model on one device."""

    device: str
    preset: str
    variant: str
    work: str
    tok_s: Positive  # tokens per second, the median of the rounds
    tok_s_low: Positive  # their lower quartile
    tok_s_high: Positive  # their upper quartile
    seconds: Positive  # median time of doing the work once
    peak_memory: int  # bytes
    kernels: int  # that a GPU starts for one step, by counting; 0 if they were not counted


class FirstStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of the first training step of `tiny` in two new processes, one after the other.

    The first compiles the kernels, and the second may find them in the system's cache.
    """

    device: str
    first: Positive
    second: Positive


class Verified(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of `mlx-attn verify` on a device."""

    device: str
    right: int
    wrong: tuple[str, ...]
    rounding: str


class Contribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of one machine."""

    schema: int
    date: str
    mlx_attn: str
    commit: str  # of the clone, with "+" if the code was changed; "" if it was installed
    mlx: str
    python: str
    system: str
    chip: str
    blas: str
    performance_cores: int  # on other machines than Macs, all of the processor's cores
    efficiency_cores: int
    gpu_cores: int  # 0 if unknown, or if there is no GPU
    memory_bytes: int
    working_set_bytes: int  # that Metal recommends to use at most; 0 without Metal
    power: str  # "mains" or "battery", and "low power mode" if it is on; "" if unknown
    environment: dict[str, str]  # the variables of MLX and of this package that were set
    verified: tuple[Verified, ...]
    weights: str  # digest of starting weights and batches of a seed, the same on every machine
    first_steps: tuple[FirstStep, ...]
    speeds: tuple[Speed, ...]
    digest: str = ""  # of everything else

    @property
    def file_name(self) -> str:
        """Return the name of the file: chip, cores and memory."""
        cores = f"{self.gpu_cores}gpu" if self.gpu_cores else f"{self.performance_cores}cpu"
        memory = f"{round(self.memory_bytes / 2**30)}gb"
        return re.sub(r"[^a-z0-9]+", "-", f"{self.chip} {cores} {memory}".lower()) + ".json"


def measure(
    say: Callable[[str], None],
    recipe: Mapping[str, Mapping[str, Any]] = RECIPE,
    seconds: float = SECONDS,
    checks: Sequence[Check] = CHECKS,
) -> Contribution:
    """Measure this machine, and `say` what comes next; tests pass a smaller recipe."""
    names = devices()
    say("the first step, in two new processes")
    first_steps = tuple(map(_first_step, names))
    say("verify")
    verified = tuple(_verified(name, checks) for name in names)
    speeds: list[Speed] = []
    for preset, settings in recipe.items():
        say(f"{preset}: training and decoding of {' and '.join(VARIANTS)}")
        speeds += _speeds(preset, settings, seconds * len(names), names)
    made = Contribution(
        **_machine(),
        verified=verified,
        weights=seed_digest(),
        first_steps=first_steps,
        speeds=tuple(speeds),
    )
    return msgspec.structs.replace(made, digest=content_digest(made, "digest"))


def _machine() -> dict[str, Any]:
    machine = facts.machine_facts()
    performance, efficiency = facts.core_counts()
    switches = {key: value for key, value in sorted(os.environ.items()) if key.startswith("MLX_")}
    return {
        **{key: machine[key] for key in ("mlx_attn", "mlx", "python", "chip", "memory_bytes")},
        "schema": SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": facts.commit(),
        "system": facts.system_name(),
        "performance_cores": performance,
        "efficiency_cores": efficiency,
        "gpu_cores": facts.gpu_cores(),
        "working_set_bytes": facts.recommended_working_set(),
        "power": facts.power_source(),
        "blas": Path(machine["blas"]).name,  # MLX_ATTN_BLAS may name a library in a user's folder
        "environment": {
            key: value if _PUBLIC.fullmatch(value) else "(hidden)"
            for key, value in switches.items()
        },
    }


_PUBLIC = re.compile(r"[\d.]*|(mac-)?cpu|gpu|on|off|true|false|\(hidden\)", re.IGNORECASE)
"""A number, a device or a switch; any other value could name a folder, a host or a user."""


def _first_step(device: str) -> FirstStep:
    return FirstStep(device=device, first=_in_new_process(device), second=_in_new_process(device))


def _in_new_process(device: str) -> float:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return round(process.submit(first_step_seconds, device).result(), 3)


def first_step_seconds(device: str) -> float:
    """Return the seconds of the first training step of `tiny` in this process."""
    with on_device(device):
        setups, _ = variant_setups("tiny", {}, VARIANTS[:1])
        step = train_step(*setups[VARIANTS[0]])
        began = time.perf_counter()
        mx.eval(step_graph(step))
        return time.perf_counter() - began


def _verified(device: str, checks: Sequence[Check]) -> Verified:
    with on_device(device):
        rounding = measured_rounding()
        findings = [run(check, device, rounding) for check in checks]
    wrong = tuple(finding.check.name for finding in findings if not finding.is_right)
    right = len(findings) - len(wrong)
    return Verified(device=device, right=right, wrong=wrong, rounding=rounding.name)


def _speeds(
    preset: str, settings: Mapping[str, Any], seconds: float, names: Sequence[str]
) -> Iterator[Speed]:
    setups, _ = variant_setups(preset, settings, VARIANTS)
    kernels: dict[tuple[str, str], int] = {}
    with suppress(RunError):  # without a compiler nothing is joined, and so not counted
        kernels = {(row.work, row.name): row.kernels for row in kernel_counts(setups, WORKS)}
    for row in bench(setups, WORKS, seconds, names):
        yield Speed(
            device=row.device,
            preset=preset,
            variant=row.name,
            work=row.work,
            tok_s=round(row.tok_s.median, 1),
            tok_s_low=round(row.tok_s.low, 1),
            tok_s_high=round(row.tok_s.high, 1),
            seconds=row.seconds.median,
            peak_memory=row.peak_memory,
            kernels=kernels.get((row.work, row.name), 0),
        )


# The file.


def write(made: Contribution, clone: Path) -> Path:
    """Write a contribution to a clone's `benchmarks/machines`, or to a folder that has none."""
    folder = clone / "benchmarks" / "machines"
    file = (folder if folder.is_dir() else clone) / made.file_name
    write_text(file, json.dumps(msgspec.to_builtins(made), indent=1) + "\n")
    return file


def read(path: Path) -> Contribution:
    """Read and check a contribution.

    Raises:
        RunError: A key is missing or unknown, the content was changed, or the weights differ from
            this code's; the message names the file and the key.
    """
    made = read_record(path, Contribution)
    private = [
        variable
        for variable, value in made.environment.items()
        if not (variable.startswith("MLX_") and _PUBLIC.fullmatch(value))
    ]
    if made.schema != SCHEMA:
        problem = f"schema is {made.schema}, and this version reads {SCHEMA}"
    elif made.digest != content_digest(made, "digest"):
        problem = "digest does not fit the content, which was changed: measure again"
    elif made.weights != (own := seed_digest()):
        problem = f"weights is {made.weights}, and this code gives {own}: other code measured"
    elif private:
        problem = f"environment has {private}: only numbers and switches of MLX are public"
    else:
        return made
    raise RunError(f"{path}: {problem}")
