import json

SMALL = ("--preset=nano", "--context-length=16", "--emb-dim=16", "--vocab-size=40", "--seconds=0")


def test_the_record_has_machine_settings_and_measurements(run_command):
    result = run_command("bench", *SMALL, "--variants=standard,merged", "--part=forward", "--json")
    record = json.loads(result.stdout)
    assert record["preset"] == "nano"
    assert record["settings"]["emb_dim"] == 16
    assert record["machine"]["mlx"]
    assert [row["name"] for row in record["measurements"]] == ["standard", "merged"]


def test_what_these_sizes_do_not_allow_is_said_and_left_out(run_command):
    wide = ("--value-dim=4", "--variants=standard,key-as-value", "--part=forward", "--json")
    result = run_command("bench", *SMALL, *wide)
    assert "key-as-value is left out" in result.stderr
    assert [row["name"] for row in json.loads(result.stdout)["measurements"]] == ["standard"]
