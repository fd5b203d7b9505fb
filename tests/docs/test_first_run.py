"""What the README says of a first run is what a first run gives."""

from statistics import stdev

import first_run
import pytest


def figures_of(text: str) -> dict[str, str]:
    figures = first_run.FIGURES.search(text)
    assert figures
    return figures.groupdict()


def test_the_block_has_the_figures_of_the_trainings():
    shared = {"above_floor": 0.03, "seconds": 40.4, "tok_s": 30_000, "peak_memory": 101e6}
    results = [
        {**shared, "bits_per_byte": loss, "abilities": {"recall": 0.02, "copy": copy}}
        for loss, copy in ((0.21, 0.001), (0.23, 0.02))
    ]
    block = first_run.block(results, "A story.")
    deviation = f"{stdev([0.21, 0.23]):.4f}"
    assert figures_of(block) == {"mean": "0.2200", "deviation": deviation, "seeds": "2"}
    flat = " ".join(block.split())
    assert "took 40 s on a Linux server with two cores (30k tokens/s, 101 MB)" in flat
    assert "1 of 2 seeds learned to copy" in flat
    assert block.endswith("\n> A story.\n")


@pytest.mark.slow
def test_a_run_lies_within_two_standard_deviations_of_the_readme_s_mean(tmp_path):
    figures = figures_of(first_run.README.read_text(encoding="utf-8"))
    loss = first_run.result(first_run.train(0, tmp_path))["bits_per_byte"]
    assert abs(loss - float(figures["mean"])) <= 2 * float(figures["deviation"])


def test_the_readme_has_figures():
    figures = figures_of(first_run.README.read_text(encoding="utf-8"))
    assert 0 < float(figures["deviation"]) < 0.1 * float(figures["mean"])
