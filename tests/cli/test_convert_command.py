import json
import re
from functools import partial

from mlx_attn.run_directory import open_run
from mlx_attn.runs import summarise_runs
from tests.cli.conftest import invoke

convert = partial(invoke, "convert")


def test_the_new_run_and_what_changed_go_to_stdout_and_it_converts_further(nano):
    result = convert("nano", "--to", "merged")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("runs/nano-merged\n")
    for fact in ("standard -> merged", "validation loss", "largest logit difference", "parameters"):
        assert fact in result.stdout
    assert open_run(nano / "runs" / "nano-merged").load_model().config.score == "merged"
    back = convert("nano-merged", "--to", "separate", "--rank", "8", "--out", "back", "--json")
    assert json.loads(back.stdout)["logit_difference"] < 1e-5


def test_a_form_that_is_not_the_same_function_is_said_to_be_another(nano):
    line = convert("nano", "--to", "no-out-proj").stderr
    assert re.match("no-out-proj: not the same function: the heads' matrices differ by [1-9]", line)
    assert "mlx-attn train --resume runs/nano-no-out-proj" in line


def test_a_converted_run_is_listed_as_it_was_measured(nano):
    made = json.loads(convert("nano", "--to", "merged", "--json").stdout)
    (run, _) = summarise_runs(nano / "runs")
    assert (run.name, run.ended) == ("nano-merged", True)
    assert (run.val_loss, run.parameters) == (made["after"]["val_loss"], made["after"]["params"])
    assert made["loss_change"] == run.val_loss - made["before"]["val_loss"]
