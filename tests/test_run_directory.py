import json

import pytest

from mlx_attn.errors import RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import find_runs, held, new_run, open_run, remove_own_files
from mlx_attn.runs import free_name
from tests.runs import create_run

CONFIG = GPTConfig(vocab_size=5, context_length=4, emb_dim=4, n_heads=2, n_layers=1)
SETTINGS = {"model": CONFIG.as_dict(), "training": {}, "text": {}}


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "run", SETTINGS)


def refused(call, *arguments) -> str:
    with pytest.raises(RunError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_run_is_opened_with_the_settings_it_was_made_with(run):
    assert open_run(run.path) == run
    assert run.settings == SETTINGS
    text = (run.path / "config.json").read_text()  # which is for people too
    assert text == json.dumps(SETTINGS, indent=1, sort_keys=True) + "\n"
    with pytest.raises(ValueError, match="JSON"):
        create_run(run.path.with_name("other"), {**SETTINGS, "speed": float("nan")})


def test_overwriting_removes_the_run_s_own_files_and_no_others(run):
    run.add_report({"event": "start", "step": 0})
    (run.path / "notes.md").write_text("mine")
    create_run(run.path, {**SETTINGS, "new": 1}, overwrite=True)
    assert {path.name for path in run.path.iterdir()} == {"config.json", "notes.md"}
    assert open_run(run.path).settings["new"] == 1


def test_what_is_no_run_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "--overwrite leaves it alone" in refused(create_run, tmp_path, SETTINGS, True)
    (tmp_path / "config.json").write_text("{}")
    assert "damaged" in refused(create_run, tmp_path, SETTINGS, True)
    assert (tmp_path / "thesis.txt").exists()


def test_of_two_trainings_that_start_together_one_gets_the_name(tmp_path):
    path = tmp_path / "run"
    with new_run(path, SETTINGS) as run:
        message = refused(create_run, path, {**SETTINGS, "second": 1})
        assert f"{path} exists: train --resume {path} continues it, --overwrite" in message
        assert "in use by another process" in refused(create_run, path, SETTINGS, True)
    assert open_run(path).settings == SETTINGS
    with new_run(path, SETTINGS, overwrite=True) as run:
        assert "in use by another process" in refused(held(run).__enter__)


@pytest.mark.parametrize("left", ["tokenizer.json", ".config.json.0123abcd.tmp"])
def test_what_a_killed_start_left_is_no_run(tmp_path, left):
    path = tmp_path / "run"
    path.mkdir()
    (path / left).write_text("")
    assert find_runs(tmp_path) == []
    assert "not a run directory" in refused(open_run, path)
    assert create_run(path, SETTINGS).settings == SETTINGS


def test_a_run_that_fails_before_its_weights_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), new_run(tmp_path / "run", SETTINGS):
        raise RuntimeError
    assert not (tmp_path / "run").exists()
    remove_own_files(tmp_path / "run")  # as if it had been moved: no error hides the first one


@pytest.mark.parametrize(("key", "value"), [("n_heads", "two"), ("heads", 2), ("n_heads", 3)])
def test_a_model_that_cannot_be_built_is_refused_by_file(run, key, value):
    run.save_model(GPT(CONFIG))
    settings = {**SETTINGS, "model": {**SETTINGS["model"], "head_dim": 0, key: value}}
    changed = run.with_settings(settings)
    assert f"{run.path / 'config.json'}: " in refused(changed.load_model)


def test_the_model_of_a_run_is_ready_for_evaluation(run):
    run.save_model(GPT(CONFIG))
    assert not run.load_model().training


def test_what_is_made_again_is_forgotten_like_a_line_cut_short_by_a_crash(run):
    run.append("samples.txt", "--- st")
    run.forget_after(0)
    assert run.metrics() == []
    reports = [{"event": "step", "step": step, "loss": 1.5} for step in (10, 20, 30)]
    for step, report in zip((10, 20, 30), reports, strict=True):
        run.add_report(report)
        run.add_sample(step, f"text\r of {step}")
    run.add_report({"event": "end", "steps": 30})
    run.append("metrics.jsonl", '{"cut')
    samples = run.path / "samples.txt"
    samples.write_bytes(samples.read_bytes() + b"--- st" + "é".encode()[:1])
    run.forget_after(20)
    assert run.metrics() == reports[:2]
    assert samples.read_bytes() == b"--- step 10\ntext\r of 10\n\n--- step 20\ntext\r of 20\n\n"


def test_runs_are_found_with_the_latest_first(tmp_path):
    assert find_runs(tmp_path / "runs") == []
    for name in ("one", "two", "three"):
        create_run(tmp_path / name, SETTINGS)
    (tmp_path / "none").mkdir()
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    assert free_name(tmp_path, "two") == tmp_path / "two-2"
    times = [(path / "config.json").stat().st_mtime_ns for path in find_runs(tmp_path)]
    assert len(times) == 3
    assert times == sorted(times, reverse=True)
