"""What the README says of a first run is what a first run gives."""

import importlib.util
from pathlib import Path
from statistics import stdev

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("first_run", ROOT / "docs" / "first_run.py")
assert SPEC
assert SPEC.loader
first_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(first_run)


def result(bits_per_byte: float, copy: float) -> dict:
    abilities = {"recall": 0.02, "copy": copy}
    return {
        "bits_per_byte": bits_per_byte,
        "above_floor": 0.03,
        "abilities": abilities,
        "seconds": 40.4,
        "tok_s": 30_000,
        "peak_memory": 101e6,
    }


def test_the_block_has_the_figures_of_the_trainings():
    block = first_run.block([result(0.21, 0.001), result(0.23, 0.02)], "A story.")
    figures = first_run.FIGURES.search(block)
    assert figures.groupdict() == {
        "mean": "0.2200",
        "deviation": f"{stdev([0.21, 0.23]):.4f}",
        "seeds": "2",
    }
    flat = " ".join(block.split())
    assert "took 40 s on a Linux server with two cores (30k tokens/s, 101 MB)" in flat
    assert "1 of 2 seeds learned to copy" in flat
    assert block.endswith("\n> A story.\n")


def test_the_readme_has_figures():
    figures = first_run.FIGURES.search(first_run.README.read_text(encoding="utf-8"))
    assert figures
    assert 0 < float(figures["deviation"]) < 0.1 * float(figures["mean"])


@pytest.mark.slow
def test_a_run_lies_within_two_standard_deviations_of_the_readme_s_mean(tmp_path):
    figures = first_run.FIGURES.search(first_run.README.read_text(encoding="utf-8"))
    loss = first_run.result(first_run.train(0, tmp_path))["bits_per_byte"]
    assert abs(loss - float(figures["mean"])) <= 2 * float(figures["deviation"])
