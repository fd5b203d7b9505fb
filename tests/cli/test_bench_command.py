import json

import pytest

from tests.cli.conftest import done, refused

SMALL = ("--preset=nano", "--context-length=16", "--emb-dim=16", "--vocab-size=40", "--seconds=0")


def test_the_record_has_machine_settings_and_measurements(run_command):
    result = run_command("bench", *SMALL, "--variants=standard,merged", "--part=forward", "--json")
    record = json.loads(result.stdout)
    assert record["preset"] == "nano"
    assert record["settings"]["emb_dim"] == 16
    assert record["machine"]["mlx"]
    assert [row["name"] for row in record["measurements"]] == ["standard", "merged"]


@pytest.mark.parametrize("flag", ["--n-heads=3", "--context-length=9223372036854775808"])
def test_sizes_that_leave_out_every_variant_are_one_line(run_command, flag):
    line = refused(run_command("bench", *SMALL, "--variants=standard", flag), 2)
    assert "no variant is left to measure: standard: " in line


def test_a_preset_that_accumulates_is_measured_by_its_batch(run_command):
    sizes = ("--batch-size=2", "--n-layers=1", "--n-heads=2", "--part=train", "--json")
    result = run_command("bench", *SMALL[1:], "--preset=gpt2", "--variants=standard", *sizes)
    assert json.loads(done(result))["measurements"][0]["tokens"] == 2 * 16
