import json

import pytest

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


def test_the_figure_is_written_beside_its_name(run_command, tmp_path):
    pytest.importorskip("matplotlib")
    variants = ("--variants=standard", "--part=forward", f"--figure={tmp_path / 'speed'}")
    run_command("bench", *SMALL, *variants)
    assert {file.name for file in tmp_path.iterdir()} == {"speed.svg", "speed.png"}


def test_one_size_is_scaled(run_command):
    result = run_command("bench", *SMALL, "--scaling=layers", "--part=forward", "--json")
    names = [row["name"] for row in json.loads(result.stdout)["measurements"]]
    assert names == ["layers 1", "layers 2", "layers 4", "layers 8"]
