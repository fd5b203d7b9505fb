"""Export: the route of every form, what is written, and what stands in the way."""

import html
import json
import re
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from markdown_it import MarkdownIt

from mlx_attn.attention.config import CHOICES, VARIANTS, Choice
from mlx_attn.convert.model import convert
from mlx_attn.errors import ConfigError
from mlx_attn.interop.gguf import read_gguf
from mlx_attn.interop.parity import interpreter
from mlx_attn.interop.shipped import MLX_FILE
from mlx_attn.interop.targets import TARGETS, Exported, export_run
from mlx_attn.interop.torch_archive import read_checkpoint
from mlx_attn.markdown import visible
from mlx_attn.sampling.generate import LoadedRun

from .conftest import MODERN

pytestmark = pytest.mark.usefixtures("no_peers")

EXACT = (
    "scores-off",
    *("standard", "no-out-proj", "no-query", "no-key", "shared-query-key", "no-value"),
    *("no-value-no-out-proj", "key-only", "key-as-value", "sliced-heads", "mla", "hadamard"),
    *("orthogonal", "temperature"),
)
"""The variants that are GPT-2, after an exact conversion where it needs one."""


def test_transformers_without_pytorch_is_not_asked(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "transformers" or None)
    assert interpreter("transformers") is None


def export(loaded: LoadedRun, to: str, out: Path, **options: Any) -> Exported:
    return export_run(loaded, TARGETS[to], out, **options)


@pytest.mark.parametrize(
    ("variant", "to"),
    [
        *((variant, "gpt2") for variant in EXACT),
        *product(("standard", "no-query", "mla"), ("book", "gguf", "transformer-lens")),
        ("merged", "transformer-lens"),  # whose heads may be as wide as x
    ],
)
def test_a_form_that_converts_exactly_needs_no_code(variant, to, make_run, out):
    (parity,) = export(make_run(**VARIANTS[variant].maps), to, out).parities
    assert parity.logit_difference < 1e-5 * max(1, parity.largest_logit)
    assert parity.greedy_equal == parity.greedy


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in EXACT])
def test_other_forms_are_refused_by_gpt2_with_the_reason_and_the_way_out(variant, make_run, out):
    loaded = make_run(**VARIANTS[variant].settings)
    with pytest.raises(ConfigError, match=r"GPT-2 cannot hold this model: .+'--to mlx-lm'"):
        export(loaded, "gpt2", out)
    assert not out.exists()


@pytest.mark.parametrize("variant", ["merged", "gated"])
def test_other_forms_go_to_mlx_lm_with_code(variant, make_run, out):
    made = export(make_run(**VARIANTS[variant].maps), "mlx-lm", out)
    assert (out / MLX_FILE).is_file()
    named = json.loads((out / "config.json").read_text())["auto_map"]["AutoConfig"]
    configuration = (out / f"{named.split('.')[0]}.py").read_text()
    assert "torch" not in configuration  # a tokenizer is read where PyTorch is not installed
    assert made.route.startswith("code of its own")
    assert made.parities[-1].logit_difference < 5e-5


def test_a_choice_of_a_plugin_is_sent_to_the_target_that_ships_its_code(make_run, out, monkeypatch):
    mine = Choice(map="mixing", name="mine", formula="w_h", apply=lambda a, s: mx.softmax(s, -1))
    monkeypatch.setitem(CHOICES["mixing"], "mine", mine)
    with pytest.raises(ConfigError, match="'--to mlx-lm' ships code that holds it"):
        export(make_run(mixing="mine"), "gguf", out)
    assert export(make_run(name="own", mixing="mine"), "mlx-lm", out).route.startswith("code")


@pytest.mark.parametrize("score", ["separate", "merged"])
def test_rope_is_arcee_and_merged_is_its_multi_query_attention(score, make_run, out):
    loaded = make_run(score=score, position="rope", **MODERN)
    made = export(loaded, "gguf", out)
    exact = "with score=merged written as one key head of width 32, which is exact"
    assert (exact in made.route) == (score == "merged")
    (parity,) = made.parities
    assert parity.logit_difference < 5e-5
    config = read_gguf(out).config
    wanted = {"separate": (8, 4), "merged": (32, 1)}[score]
    assert (config.head_dim, config.n_kv_heads) == wanted
    if score == "separate":  # RoPE's coordinates are neighbours in llama.cpp
        theirs = read_by_mlx(out)[0]["blk.0.attn_k.weight"]
        ours = loaded.model.trf_blocks[0].att.W_key.weight[:8]
        assert mx.array_equal(theirs[:8:2], ours[:4])
        assert mx.array_equal(theirs[1:8:2], ours[4:])


def test_a_tied_head_is_stock_in_mlx_lm_and_an_untied_one_is_code(make_run, tmp_path):
    tied = export(make_run(name="tied", tied_head=True), "mlx-lm", tmp_path / "1")
    untied = export(make_run(name="untied"), "mlx-lm", tmp_path / "2")
    assert (tied.route[:5], untied.route[:4]) == ("GPT-2", "code")


def test_a_merged_model_of_low_rank_is_gpt2_again(make_run, out):
    loaded = make_run(qkv_bias=True)
    merged = LoadedRun(loaded.run, convert(loaded.model, "merged"), loaded.tokenizer)
    (parity,) = export(merged, "gpt2", out).parities
    assert parity.logit_difference < 1e-4


def test_gguf_has_the_names_and_facts_of_llama_cpp(make_run, out):
    loaded = make_run("bpe")
    export(loaded, "gguf", out)
    tensors, facts = read_by_mlx(out)
    assert facts["general.architecture"] == "gpt2"
    assert facts["gpt2.attention.head_count"].item() == 4
    assert facts["tokenizer.ggml.model"] == "llama"
    assert len(facts["tokenizer.ggml.tokens"]) == loaded.tokenizer.vocab_size
    unknown = facts["tokenizer.ggml.unknown_token_id"].item()
    assert facts["tokenizer.ggml.tokens"][unknown] == "<unk>"
    assert tensors["blk.1.attn_qkv.weight"].shape == (96, 32)
    assert mx.array_equal(tensors["token_embd.weight"], loaded.model.tok_emb.weight)


def read_by_mlx(path: Path) -> Any:
    return mx.load(str(path), format="gguf", return_metadata=True)


def test_the_book_s_state_dict_has_its_names_and_masks(make_run, out):
    export(make_run(qkv_bias=False), "book", out)
    arrays = read_checkpoint(out)
    assert "trf_blocks.0.norm1.scale" in arrays
    assert "trf_blocks.0.att.W_query.bias" not in arrays
    assert mx.array_equal(arrays["trf_blocks.1.att.mask"], mx.triu(mx.ones((48, 48)), k=1))


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
        assert not re.search(r"(?<!\\):(?=//)|www(?<!\\)\.", card.read_text(encoding="utf-8"))


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
