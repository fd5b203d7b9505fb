import json

from tests.cli.conftest import done

SMALL = ("--preset=nano", "--context-length=16", "--emb-dim=16", "--vocab-size=40", "--seconds=0")


def test_the_record_has_machine_settings_and_measurements(run_command):
    result = run_command("bench", *SMALL, "--variants=standard,merged", "--part=forward", "--json")
    record = json.loads(result.stdout)
    assert record["preset"] == "nano"
    assert record["settings"]["emb_dim"] == 16
    assert record["machine"]["mlx"]
    assert [row["name"] for row in record["measurements"]] == ["standard", "merged"]


def test_a_preset_that_accumulates_is_measured_by_its_batch(run_command):
    sizes = ("--batch-size=2", "--n-layers=1", "--n-heads=2", "--part=train", "--json")
    result = run_command("bench", *SMALL[1:], "--preset=gpt2", "--variants=standard", *sizes)
    assert json.loads(done(result))["measurements"][0]["tokens"] == 2 * 16
