"""Comparisons one of whose values is odd: a report of it, or one line that refuses it."""

import copy
import json
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mlx_attn.comparison.report import as_markdown
from mlx_attn.comparison.result import COMPARISON, read_comparison
from mlx_attn.comparison.show import summary_lines, verdict_tables
from mlx_attn.errors import RunError
from mlx_attn.ui.terminal import stdout_console

CASES = max(60, int(os.environ.get("FUZZ_CASES", 0)) * 2 // 100)
"""Two percent of all cases; the others are in tests/faults."""
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**40, 1e300, -1e300, float("inf"), float("nan"), "", "x", "a|b\n"),
    *([], {}, [[]], {"x": {}}, [1, "2", None], [None, None]),
)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places_in(value[key])


@pytest.mark.filterwarnings("ignore")
def test_an_odd_value_is_reported_or_refused(comparison, tmp_path):
    arms = ("standard", "merged", "no-value")
    whole = json.loads(json.dumps(comparison(arms, ("steps", "seconds"), 3, 2).as_dict()))
    read = 0
    for case in range(CASES):
        draw = random.Random(f"{CASES} {case}")
        record = copy.deepcopy(whole)
        container, key = draw.choice([*places_in(record)])
        before, container[key] = container[key], draw.choice(ODD)
        (tmp_path / COMPARISON).write_text(json.dumps(record))
        try:
            found = read_comparison(tmp_path)
            as_markdown(found)
            stdout_console().print(verdict_tables(found))
            assert summary_lines(found)
            read += 1
        except RunError:
            pass
        except Exception as error:
            raise AssertionError(f"{case}: {key} = {container[key]!r} not {before!r}") from error
    sys.stderr.write(f"odd comparisons: {CASES} cases, {read} answered\n")
    assert 0 < read < CASES
