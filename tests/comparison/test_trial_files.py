"""Trials as files: exported, trained anywhere, and taken up again."""

import json
from dataclasses import replace

import pytest

from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import Comparison
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import Exported, ExportRunner, Runner
from mlx_attn.comparison.trial import Store
from mlx_attn.comparison.worker import train_file
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.records import as_record


@pytest.fixture
def brief(brief):
    return replace(brief, seeds=1)


def export(protocol, tmp_path):
    """Go as far as the records allow."""
    runner = ExportRunner(Store(tmp_path / "store"), tmp_path / "trials")
    return list(ComparisonRun(protocol, runner))[-1]


def test_records_written_elsewhere_end_like_trainings_here(
    brief, tmp_path, in_this_process, conclusion
):
    with pytest.raises(Exported) as exported:
        export(brief, tmp_path)
    files = sorted((tmp_path / "trials").iterdir())
    texts = [file.read_text() for file in files]
    assert exported.value.count == len(files) == 2
    with pytest.raises(Exported):
        export(brief, tmp_path)
    assert [file.read_text() for file in files] == texts
    for file in files:
        train_file(file)
    found = export(brief, tmp_path)
    there = conclusion(brief, Runner(Store(tmp_path / "here"), 1))
    assert isinstance(found, Comparison)
    assert found.budgets[0].verdicts == there.budgets[0].verdicts
    assert not list((tmp_path / "trials").iterdir())


@pytest.fixture
def trial_file(brief, tmp_path):
    with pytest.raises(Exported):
        export(brief, tmp_path)
    return sorted((tmp_path / "trials").iterdir())[0]


def test_a_trial_with_a_record_is_not_trained_again(trial_file):
    record = trial_file.with_name(trial_file.name.replace(".trial", ".record"))
    record.write_text("as it is")
    assert train_file(trial_file) == record
    assert record.read_text() == "as it is"


def test_a_file_of_another_version_is_refused(trial_file):
    order = json.loads(trial_file.read_text())
    trial_file.write_text(json.dumps({**order, "versions": ["0.0.9", "1", "cpu"]}))
    with pytest.raises(RunError, match=r"mlx_attn is .* here and 0\.0\.9 where"):
        train_file(trial_file)


def test_a_file_imports_no_plugin_by_itself(trial_file, tmp_path):
    order = json.loads(trial_file.read_text())
    mine = tmp_path / "mine.py"
    mine.write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    order["plugins"] = [{"path": str(mine), "sha256": "1" * 64, "names": ["score=mine"]}]
    fields = {k: v for k, v in order.items() if k not in ("digest", "versions")}
    trial_file.write_text(json.dumps({**order, "digest": as_record(fields, Trial, "it").digest}))
    with pytest.raises(RunError, match=r"add --plugin .*mine\.py"):
        train_file(trial_file)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("x.trial.json", "{", RunError),
        ("x.trial.json", '{"arm": 1}', RunError),
        ("x.json", "{}", ConfigError),
    ],
)
def test_what_is_no_trial_is_one_line(tmp_path, name, text, error):
    (tmp_path / name).write_text(text)
    with pytest.raises(error) as raised:
        train_file(tmp_path / name)
    assert "\n" not in str(raised.value)


def test_a_damaged_record_names_itself(brief, trial_file, tmp_path):
    trial_file.with_name(trial_file.name.replace(".trial", ".record")).write_text("{}")
    with pytest.raises(RunError, match=r"\.record\.json"):
        export(brief, tmp_path)
