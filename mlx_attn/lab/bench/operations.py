"""How many operations a graph has: what MLX schedules, one by one, for each step."""

import re
import tempfile
from collections import Counter
from pathlib import Path

import mlx.core as mx

_OPERATION = re.compile(r'label ="(\w+)", shape=rectangle')


def operations(*outputs: mx.array) -> Counter[str]:
    """The operations that computing these arrays would run, by name.

    Args:
        outputs: Arrays that are not evaluated yet.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "graph.dot"
        mx.export_to_dot(str(file), *outputs)
        return Counter(_OPERATION.findall(file.read_text(encoding="utf-8")))
