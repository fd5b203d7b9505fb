"""The night of examples/loop: what helps is kept, what does nothing is not, leaks are refused."""

import propose
import pytest


@pytest.mark.slow
def test_a_night_keeps_what_helps_and_refuses_leaks(tmp_path):
    rows = propose.play(tmp_path, 0, propose.by_compare)
    words = {kind: [word for of, word, *_ in rows if of == kind] for kind, *_ in rows}
    assert words["leak"] == ["refused", "refused"]
    assert "better" in words["real"]
    assert "better" not in words["null"] + words["harm"]
