"""Curves of tracked trainings as tables, JSON and figures."""

import io
import json

import numpy as np
import pytest
from rich.console import Console, RenderableType

from mlx_attn.probe.show import (
    ROWS,
    draw_tracks,
    save_tracks,
    track_record,
    track_table,
)
from mlx_attn.probe.tracks import Track


def track(name: str = "merged", n: int = 3, drift: bool = True) -> Track:
    steps = 10 * np.arange(n)
    curve = np.arange(n * 4, dtype=np.float64).reshape(n, 2, 2) / 10
    curves: dict[str, np.ndarray] = dict.fromkeys(("effective_rank", "norm", "symmetry"), curve)
    drifts: dict[str, np.ndarray] = dict.fromkeys(("matrices", "scores", "maps"), curve)
    return Track(name, steps, curves, curves, drifts if drift else {})


def lines(shown: RenderableType) -> list[str]:
    stream = io.StringIO()
    Console(width=80, file=stream).print(shown)
    return stream.getvalue().splitlines()


def test_a_row_is_the_mean_over_all_heads_at_a_step():
    assert lines(track_table(track()))[-1].split() == ["20", *["0.95"] * 9]


def test_a_long_track_is_shown_whole_at_some_steps_from_the_first_to_the_last():
    shown = lines(track_table(track(n=500)))
    steps = [int(row[0]) for row in map(str.split, shown) if row and row[0].isdigit()]
    assert (len(steps), steps[0], steps[-1]) == (ROWS, 0, 4990)
    assert "…" not in "".join(shown)


def test_a_pair_has_a_title_and_its_three_drifts():
    one = track()
    shown = lines(track_table(Track("one against other", one.steps, {}, {}, one.drift)))
    assert shown[0] == "one against other: means over heads"
    assert shown[-1].split() == ["20", "0.95", "0.95", "0.95"]


def test_json_holds_every_step_layer_and_head():
    record = json.loads(json.dumps(track_record(track())))
    assert (record["run"], record["steps"]) == ("merged", [0, 10, 20])
    assert np.shape(record["scores"]["norm"]) == np.shape(record["drift"]["maps"]) == (3, 2, 2)


def test_one_run_has_a_line_per_head_and_several_a_colour_per_run():
    one = draw_tracks([track()], "scores").axes[0]
    two = draw_tracks([track(), track("separate")], "scores").axes[0]
    assert [line.get_label() for line in one.lines] == ["head 0", "head 1"]
    assert [line.get_color() for line in two.lines[:2]] == [two.lines[0].get_color()] * 2
    assert two.lines[2].get_color() != two.lines[0].get_color()


@pytest.mark.parametrize(
    ("drift", "paired", "names"),
    [(False, False, ["s", "vo"]), (True, True, ["drift", "pair", "s", "vo"])],
)
def test_figures_are_drawn_for_what_there_is(tmp_path, drift, paired, names):
    pair = track("one against other") if paired else None
    paths = save_tracks([track(drift=drift)], pair, tmp_path)
    assert sorted({path.stem for path in paths}) == [f"track-{name}" for name in names]
    assert all(path.stat().st_size > 0 for path in paths)
