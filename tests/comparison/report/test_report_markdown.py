"""The report as Markdown."""

import re

from mlx_attn.comparison.report import as_markdown


def test_it_says_what_the_page_says(comparison):
    text = as_markdown(comparison(budgets=["steps"]))
    assert text.startswith("# merged scores\n\nMay W\\_query and W\\_key be merged")
    assert "- **equivalent**: merged is equivalent to standard within 0.02" in text
    assert "## Equal steps\n\n### Losses\n" in text
    assert "| merged | +0.005 | -0.001 to +0.012 |" in text
    # A sample cannot close its fence.
    assert "````text\nOnce <script>" in text


def test_every_row_of_a_table_has_as_many_cells(comparison):
    text = as_markdown(comparison(arms=["standard", "a | b", "c\nd"]))
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert tables
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_nothing_that_is_quoted_is_markup_outside_code(comparison):
    name = "<b>x</b> [a](http://b) `c` *d*"
    text = as_markdown(comparison(arms=["standard", name], question=name))
    prose = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"(?<!\\)[<\[`]", prose) == []
