"""Fuzzers: how many cases each of them gets, and what becomes of a case.

FUZZ_CASES is the number of cases in all, of which each fuzzer gets its share; another number is
another seed. What they did is written to stderr: `FUZZ_CASES=1000000 pytest -n0 -s tests/faults`.
"""

import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mlx_attn.errors import ConfigError, RunError, printable

CASES = int(os.environ.get("FUZZ_CASES", 2000))
FEWEST = 100

SHARES = {
    "test_a_damaged_file_is_one_line_or_all_is_well": 2,
    "test_an_odd_value_is_reported_or_refused": 2,  # in tests/comparison/report
    "test_tokenizers_of_odd_texts_give_every_text_back": 2,
    "test_odd_settings_are_settings_or_refused": 20,
    "test_odd_models_of_config_json_are_models_or_refused": 20,
    "test_odd_toml_is_settings_or_refused": 7,
    "test_odd_paths_are_paths_or_refused": 11,
    "test_odd_arms_are_arms_or_refused": 8,
    "test_odd_command_lines_are_commands_or_refused": 4,
    "test_odd_programs_of_an_archive_are_weights_or_refused": 6,
    "test_no_line_ends_a_conversation": 6,
    "test_no_sampler_draws_an_impossible_token": 12,
}
"""Percent of all cases; those that take milliseconds get fewer than those that take none."""

assert sum(SHARES.values()) == 100


def outcome(one_case: Callable[[random.Random], Any], draw: random.Random) -> str:
    """What a case comes to: anything but an answer and the two errors of the package is raised."""
    try:
        one_case(draw)
    except (ConfigError, RunError) as error:
        line = str(error)
        assert printable(line).encode()
        return "refused"
    return "answered"


@pytest.fixture
def fuzz(request) -> Callable[[Callable[[random.Random], Any]], Counter[str]]:
    """Tries a fuzzer's share of cases; gives how many were answered and how many refused."""
    name = request.node.originalname
    cases = max(FEWEST, CASES * SHARES[name] // 100)

    def run(one_case: Callable[[random.Random], Any]) -> Counter[str]:
        found: Counter[str] = Counter()
        for case in range(cases):
            try:
                found[outcome(one_case, random.Random(f"{cases} {case}"))] += 1
            except Exception as error:
                raise AssertionError(f"case {case} of {cases}") from error
            if found.total() in (cases, cases // 2, cases // 4):
                sys.stderr.write(f"{name}: {found.total()} of {cases} cases, {dict(found)}\n")
        return found

    return run
