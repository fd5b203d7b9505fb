"""Export: the route of every form, the files, the obstacles, and files that must not change."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tokenizers as library

from mlx_attn.arrays import load_arrays
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.convert.model import convert
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.interop import targets
from mlx_attn.interop.checkpoints import read_checkpoint
from mlx_attn.interop.mlx_lm import MODEL_FILE
from mlx_attn.interop.targets import TARGETS, Exported, export_run
from mlx_attn.interop.tokenizer_json import tokenizer_files, tokenizer_json
from mlx_attn.runs import LoadedRun
from mlx_attn.text.foreign import ForeignTokenizer

from .conftest import TEXT

EXACT = (
    "scores-off",
    *("standard", "no-out-proj", "no-query", "no-key", "shared-query-key", "no-value"),
    *("no-value-no-out-proj", "key-only", "key-as-value", "sliced-heads", "mla", "temperature"),
)
"""The variants that are GPT-2, after an exact conversion where it needs one."""


def export(loaded: LoadedRun, to: str, out: Path, **options: Any) -> Exported:
    return export_run(loaded, TARGETS[to], out, **options)


@pytest.mark.parametrize("variant", EXACT)
def test_a_form_that_converts_exactly_is_gpt2(variant, make_run, out):
    parity = export(make_run(**VARIANTS[variant].maps), "gpt2", out).parity
    assert parity.logit_difference < 1e-5 * max(1, parity.largest_logit)
    assert parity.greedy_equal == parity.greedy


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in EXACT])
def test_any_other_form_is_refused_by_gpt2_and_goes_to_mlx_lm(variant, make_run, out):
    loaded = make_run(**VARIANTS[variant].settings)
    with pytest.raises(
        ConfigError, match=r"GPT-2 cannot hold this model: .+'--to mlx-lm'.+--block book"
    ):
        export(loaded, "gpt2", out)
    assert not out.exists()
    made = export(loaded, "mlx-lm", out)
    assert made.route.startswith(f"{MODEL_FILE}, which needs mlx_attn beside mlx-lm: GPT-2 cannot")
    assert made.install.startswith("pip install ")
    assert made.parity.logit_difference == 0.0


def test_a_tied_head_is_stock_in_mlx_lm_which_no_card_names_for_an_untied_gpt2(make_run, tmp_path):
    tied = export(make_run(name="tied", tied_head=True), "mlx-lm", tmp_path / "1")
    untied = export(make_run(name="untied"), "mlx-lm", tmp_path / "2")
    assert (tied.route[:5], untied.route[:8]) == ("GPT-2", MODEL_FILE)
    assert not tied.install
    export(make_run(name="gpt2"), "gpt2", tmp_path / "3")
    assert "mlx_lm.generate" not in (tmp_path / "3" / "README.md").read_text()


def test_a_merged_model_of_low_rank_is_gpt2_again(make_run, out):
    loaded = make_run(qkv_bias=True, n_kv_heads=2, head_dim=4, scale=0.3)
    merged = LoadedRun(loaded.run, convert(loaded.model, "merged"), loaded.tokenizer)
    assert export(merged, "gpt2", out).parity.logit_difference < 1e-4


def test_the_book_gets_its_names_and_masks_and_its_settings_bring_the_model_back(make_run, out):
    loaded = make_run(tied_head=True, qkv_bias=True, n_heads=8)
    export(loaded, "book", out)
    arrays, _ = load_arrays(out / "model.safetensors")
    assert {"trf_blocks.0.norm1.scale", "trf_blocks.0.att.W_query.bias"} <= {*arrays}
    assert mx.array_equal(arrays["trf_blocks.1.att.mask"], mx.triu(mx.ones((48, 48)), k=1))
    assert read_checkpoint(out).model.config == loaded.model.config


@pytest.mark.parametrize("corpus", ["tales", "a text"])
def test_what_was_trained_on_documents_says_how_one_begins(corpus, make_run, out):
    loaded = make_run("bpe", tied_head=True)
    run = replace(loaded.run, settings={**loaded.run.settings, "corpus": corpus})
    export(LoadedRun(run, loaded.model, loaded.tokenizer), "gpt2", out)
    (newline,) = loaded.tokenizer.encode("\n").tolist()
    first = json.loads((out / "generation_config.json").read_text()).get("bos_token_id")
    assert first == (newline if corpus == "tales" else None)
    start = r"\n" if corpus == "tales" else ""
    command = (
        f"mlx_lm.generate --model . --prompt $'{start}One rainy day' -m 40 --ignore-chat-template"
    )
    assert command in (out / "README.md").read_text()


TEXTS = (
    "the  quick   fox",
    "\n\nIt\n jumps\n",
    "fox \U0001f600 dog, naïve ones, Übung",
    "13 dogs, isn't it?",
    "a\0b\tc",
)


@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram", "gpt2", "char"])
def test_the_exported_tokenizer_has_the_ids_of_ours_and_a_text_comes_back(kind, tokenizers):
    written = tokenizer_json(tokenizers[kind])
    theirs = library.Tokenizer.from_str(written)
    if kind in ("bpe", "unigram"):  # the first token is the unknown one
        assert ForeignTokenizer(written).vocabulary[1:] == tokenizers[kind].vocabulary[1:]
    for text in (TEXT[:300],) if kind == "char" else TEXTS:
        ids = tokenizers[kind].encode(text).tolist()
        assert theirs.encode(text).ids == ids
        assert theirs.decode(ids) == text
    end = json.loads(tokenizer_files(tokenizers[kind], 8)["tokenizer_config.json"]).get("eos_token")
    assert (end is None) == (kind == "char")  # mlx_lm.lora needs one
    assert end is None or theirs.token_to_id(end) is not None


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_a_user_added_to_an_export_stays_when_it_is_exported_again(make_run, out):
    export_run(make_run(score="merged"), TARGETS["mlx-lm"], out)
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (out / "NOTES.md").write_text("what I did")
    (out.with_name(f".export-{out.name}") / "new" / "half").mkdir(parents=True)  # of a killed one
    (out / "mlx_attn" / ".DS_Store").touch()  # of the Finder
    (out.parent / "thesis.tex").write_text("years of work")
    (out / "link.tex").symlink_to(out.parent / "thesis.tex")
    listed = out / "mlx_attn" / "exported.json"  # which a killed export left old; or of anything
    digest = hashlib.sha256(b"years of work").hexdigest()
    more = dict.fromkeys(("../thesis.tex", "link.tex"), digest)
    more |= dict.fromkeys((".git", "NOTES.md", "generation_config.json"), "")
    listed.write_text(json.dumps({**json.loads(listed.read_text()), **more}))
    export_run(make_run(name="other"), TARGETS["gpt2"], out, overwrite=True)
    assert (out / ".git" / "HEAD").read_text() == "ref: refs/heads/main"
    assert (out / "NOTES.md").read_text() == "what I did"
    assert (out / "link.tex").read_text() == "years of work"
    assert not (out / "model.py").exists()  # of the first export, and nobody changed it
    assert not [*out.parent.glob(".export-*")]


@pytest.mark.parametrize("name", ["README.md", "mlx_attn/mine.txt"])
def test_a_file_that_a_user_changed_is_not_replaced(name, make_run, out):
    loaded = make_run()
    export_run(loaded, TARGETS["gpt2"], out)
    (out / name).write_bytes(b"mine")
    before = content(out)
    with pytest.raises(RunError, match=f"{name} was changed since the export, or is not of it"):
        export_run(loaded, TARGETS["gpt2"], out, overwrite=True)
    assert content(out) == before


def test_an_export_that_computes_something_else_is_removed(make_run, out, monkeypatch):
    loaded, weights = make_run(score="merged"), targets.named_arrays
    export_run(loaded, TARGETS["mlx-lm"], out)
    before = content(out)

    def wrong(model):
        arrays = weights(model)
        return {**arrays, "final_norm.weight": 0.5 * arrays["final_norm.weight"]}

    monkeypatch.setattr(targets, "named_arrays", wrong)
    with pytest.raises(RunError, match="it would not be this model: read back: largest logit"):
        export_run(loaded, TARGETS["mlx-lm"], out, overwrite=True)
    assert content(out) == before
    assert [path.name for path in out.parent.glob("*out*")] == ["out"]
