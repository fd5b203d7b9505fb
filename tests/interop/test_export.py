"""Export: the route of every form, what is written, and what stands in the way."""

import html
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from markdown_it import MarkdownIt

from mlx_attn.arrays import load_arrays
from mlx_attn.attention.config import VARIANTS
from mlx_attn.convert.model import convert
from mlx_attn.errors import ConfigError
from mlx_attn.interop.checkpoints import read_checkpoint
from mlx_attn.interop.mlx_lm import MODEL_FILE
from mlx_attn.interop.targets import TARGETS, Exported, export_run
from mlx_attn.markdown import visible
from mlx_attn.sampling.generate import LoadedRun

EXACT = (
    "scores-off",
    *("standard", "no-out-proj", "no-query", "no-key", "shared-query-key", "no-value"),
    *("no-value-no-out-proj", "key-only", "key-as-value", "sliced-heads", "mla", "temperature"),
    *("hadamard", "orthogonal"),
)
"""The variants that are GPT-2, after an exact conversion where it needs one."""


def export(loaded: LoadedRun, to: str, out: Path, **options: Any) -> Exported:
    return export_run(loaded, TARGETS[to], out, **options)


@pytest.mark.parametrize("variant", [name for name in EXACT if name in VARIANTS])
def test_a_form_that_converts_exactly_is_gpt2(variant, make_run, out):
    parity = export(make_run(**VARIANTS[variant].maps), "gpt2", out).parity
    assert parity.logit_difference < 1e-5 * max(1, parity.largest_logit)
    assert parity.greedy_equal == parity.greedy


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in EXACT])
def test_any_other_form_is_refused_by_gpt2_and_goes_to_mlx_lm(variant, make_run, out):
    loaded = make_run(**VARIANTS[variant].settings)
    with pytest.raises(ConfigError, match=r"GPT-2 cannot hold this model: .+'--to mlx-lm'"):
        export(loaded, "gpt2", out)
    assert not out.exists()
    made = export(loaded, "mlx-lm", out)
    assert made.route.startswith(f"{MODEL_FILE}, which needs mlx_attn beside mlx-lm: GPT-2 cannot")
    assert made.install.startswith("pip install ")
    assert made.parity.logit_difference == 0.0


def test_a_tied_head_is_stock_in_mlx_lm_and_an_untied_one_needs_the_model_file(make_run, tmp_path):
    tied = export(make_run(name="tied", tied_head=True), "mlx-lm", tmp_path / "1")
    untied = export(make_run(name="untied"), "mlx-lm", tmp_path / "2")
    assert (tied.route[:5], untied.route[:8]) == ("GPT-2", MODEL_FILE)
    assert not tied.install


def test_a_merged_model_of_low_rank_is_gpt2_again(make_run, out):
    loaded = make_run(qkv_bias=True)
    merged = LoadedRun(loaded.run, convert(loaded.model, "merged"), loaded.tokenizer)
    assert export(merged, "gpt2", out).parity.logit_difference < 1e-4


@pytest.mark.parametrize("settings", [{}, {"tied_head": True, "qkv_bias": True, "n_heads": 8}])
def test_the_book_gets_its_names_and_masks_and_its_settings_bring_the_model_back(
    settings, make_run, out
):
    loaded = make_run(**settings)
    export(loaded, "book", out)
    arrays, _ = load_arrays(out / "model.safetensors")
    assert "trf_blocks.0.norm1.scale" in arrays
    assert ("trf_blocks.0.att.W_query.bias" in arrays) == ("qkv_bias" in settings)
    assert mx.array_equal(arrays["trf_blocks.1.att.mask"], mx.triu(mx.ones((48, 48)), k=1))
    assert read_checkpoint(out).model.config == loaded.model.config


def rendered(card: Path) -> str:
    """The card as HTML."""
    return MarkdownIt().enable("table").render(card.read_text(encoding="utf-8"))


def shown(card: Path) -> str:
    """The text of the card as a reader sees it."""
    return html.unescape(re.sub("<[^>]*>", "", rendered(card)))


HOSTILE = (
    "a`b | y | <img src=x onerror=alert(1)>",
    "[a](javascript:alert(1)) ![a](https://x.example/a.png)",
    "# first\n\n# second\n- **third** www.x.example &lt;b&gt; \u202ereversed",
)


def test_what_a_run_says_of_itself_is_text_in_its_card(make_run, tmp_path):
    loaded, tags = make_run(), re.compile("<[a-z][^>]*>")
    plain = export(loaded, "gpt2", tmp_path / "plain").path / "README.md"
    for number, text in enumerate(HOSTILE):
        says = {**loaded.run.settings, "variant": text, "text": {"data": text}}
        path = loaded.run.path.with_name(text.replace("/", "-"))
        hostile = LoadedRun(
            replace(loaded.run, settings=says, path=path), loaded.model, loaded.tokenizer
        )
        card = export(hostile, "gpt2", tmp_path / str(number)).path / "README.md"
        assert tags.findall(rendered(card)) == tags.findall(rendered(plain))
        assert f"trained on\n{visible(' '.join(text.split()))}\n" in shown(card)


@pytest.mark.parametrize("name", ["$(touch PWNED)", "it's; ls", "-x", "a\nb"])
def test_the_command_of_the_card_names_the_folder_to_a_shell(name, make_run, tmp_path):
    folder = tmp_path / name
    export(make_run("bpe"), "gpt2", folder)
    (code,) = re.findall("<code.*?>(.*?)</code>", rendered(folder / "README.md"), re.DOTALL)
    command = html.unescape(code).strip()
    assert "\n" not in command
    asked = 'mlx_lm.generate() { printf "%s\\0" "$2"; }; '
    told = subprocess.run(["bash", "-c", asked + command], capture_output=True, cwd=tmp_path)
    assert (tmp_path / told.stdout.decode().rstrip("\0")) == folder
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("corpus", ["tales", "a text"])
def test_what_was_trained_on_documents_says_how_one_begins(corpus, make_run, out):
    loaded = make_run("char")
    run = replace(loaded.run, settings={**loaded.run.settings, "corpus": corpus})
    export(LoadedRun(run, loaded.model, loaded.tokenizer), "gpt2", out)
    (newline,) = loaded.tokenizer.encode("\n").tolist()
    first = json.loads((out / "generation_config.json").read_text()).get("bos_token_id")
    assert first == (newline if corpus == "tales" else None)
    assert (r"began after '\n'" in shown(out / "README.md")) == (corpus == "tales")
