import json
from pathlib import Path

from mlx_attn.machine import blas, device
from mlx_attn.run_directory import open_run
from mlx_attn.training.show import what_next


def events(result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def settings(path: str = "runs/tiny-standard") -> dict:
    return json.loads(Path(path, "config.json").read_text())


def test_results_are_on_stdout_and_progress_is_on_stderr(train):
    result = train()
    first, second, *next_steps = result.stdout.splitlines()
    assert first.startswith("best val loss")
    assert second.startswith("it writes: ")
    assert next_steps == what_next(open_run(Path("runs/tiny-standard")))
    assert all("runs/tiny-standard" in line for line in next_steps)
    assert result.stderr.startswith("variant")
    assert "step 6/6  loss" in result.stderr
    assert "val loss" in result.stderr
    assert not {"\x1b", "\r"} & set(result.stdout + result.stderr)


def test_json_is_one_event_a_line_and_the_end_is_the_result(train):
    result = train("--json")
    assert [event["event"] for event in events(result)] == (
        ["start", "step", "step", "eval", "step", "step", "eval", "end"]
    )
    assert result.stdout == Path("runs/tiny-standard/metrics.jsonl").read_text()
    end = events(result)[-1]
    keys = "variant steps tokens val_loss bits_per_byte params tok_s peak_memory seconds run"
    assert all(end[key] is not None for key in keys.split())
    assert (end["steps"], end["tokens"], end["run"]) == (6, 6 * 4 * 16, "runs/tiny-standard")
    assert result.stderr == ""


def test_a_run_is_replaced_when_told(train):
    train("--out", "mine")
    assert train("--out", "mine", "--seed", "5", "--overwrite").exit_code == 0
    assert settings("mine")["training"]["seed"] == 5


def test_a_dry_run_shows_the_plan_and_writes_nothing(train, workshop):
    result = train("--dry-run")
    assert result.stdout.startswith("variant     standard\n")
    assert result.stderr == ""
    (plan,) = events(train("--dry-run", "--json"))
    assert (plan["event"], plan["steps"], plan["tokens_per_step"]) == ("plan", 6, 64)
    assert plan["params"] > 1000
    assert not (workshop / "runs").exists()


def test_a_training_without_a_fast_blas_says_so_first(train, monkeypatch):
    monkeypatch.setattr(device, "device_name", lambda: "cpu")
    monkeypatch.setattr(blas, "preload", lambda: blas.Blas(None, blas._HINT, is_slow=True))
    first = train("--dry-run").stderr.splitlines()[0]
    assert "ten times slower here: apt install libopenblas0, or install gcc" in first


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_preset(train, workshop):
    (workshop / "mine.toml").write_text(
        'preset = "nano"\nseed = 1\nclip = 0.5\n[training]\nlr = 0.1\n[model]\nqkv_bias = true\n',
        encoding="utf-8-sig",  # with the byte order mark of Windows' editors
    )
    environment = {"MLX_ATTN_SEED": "2", "MLX_ATTN_LR": "0.2", "MLX_ATTN_SCORE": "no_query"}
    flags = ["--config", "mine.toml", "--lr", "0.3", "--merge-qk"]
    train(*flags, "--out", "mine", env=environment)
    assert settings("mine")["variant"] == "merged"
    training = settings("mine")["training"]
    assert (training["lr"], training["seed"], training["clip"]) == (0.3, 2, 0.5)
    assert training["optimizer"] == "muon"
    assert settings("mine")["model"]["qkv_bias"] is True


def test_a_text_from_stdin_may_be_piped_in_again_or_named_as_a_file(train, run_command, workshop):
    story = (workshop / "story.txt").read_text()
    assert train("--data", "-", input=story).exit_code == 0
    assert "from standard input: give a prompt" in run_command("probe", "tiny-standard").stderr
    again = train("--resume", "tiny-standard", "--steps", "8", input=story)
    assert "8 steps" in again.stdout
    flags = ["--resume", "tiny-standard", "--steps", "9", "--data", "story.txt"]
    assert "9 steps" in train(*flags).stdout
    assert settings()["text"]["data"] == "story.txt"
