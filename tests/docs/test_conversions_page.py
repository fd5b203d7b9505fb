"""The page about conversions has the program's own table."""

import re
from pathlib import Path

from mlx_attn.attention.conversions import CONVERSIONS

PAGE = Path(__file__).parent.parent.parent / "docs" / "conversions.md"


def test_its_table_is_the_table_of_conversions():
    rows = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows[1:] == [(row.name, row.identity, row.exact) for row in CONVERSIONS.values()]
