"""The shell and Python blocks of the pages run, word for word: `.ci/run` runs the README's."""

import blocks
import pytest


@pytest.mark.slow
def test_every_block_runs():
    blocks.main(blocks.PAGES)


def test_the_pages_have_blocks():
    assert all(blocks.blocks(page) for page in blocks.PAGES)
