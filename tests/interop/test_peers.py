"""Other programs load what was exported, and what they made is imported.

They live in an environment of their own:

    python -m venv peers
    peers/bin/pip install mlx-lm 'mlx[cpu]' torch transformers accelerate gguf \\
        'transformer-lens<4' llama-cpp-python
    MLX_ATTN_PEERS_PYTHON=peers/bin/python pytest -m slow tests/interop/test_peers.py
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.config import VARIANTS
from mlx_attn.convert.model import convert
from mlx_attn.errors import ConfigError
from mlx_attn.interop.imported import find_source, import_run, parity_of
from mlx_attn.interop.names import Arrays, to_book
from mlx_attn.interop.parity import Parity, interpreter
from mlx_attn.interop.targets import TARGETS, Exported, export_run
from mlx_attn.interop.torch_archive import write_checkpoint
from mlx_attn.model.config import PRESETS
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.generate import LoadedRun, load_run
from mlx_attn.text.characters import CharacterTokenizer

from .conftest import MODERN, run_of
from .test_export import EXACT
from .test_import import in_one_matrix
from .test_shipped import SMALL, WINDOWED

PYTHON = os.environ.get("MLX_ATTN_PEERS_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="MLX_ATTN_PEERS_PYTHON names no Python with the peers"),
]

READERS = {"TransformerLens": "transformer-lens", "PyTorch": "torch"}
"""Readers whose own name is another."""
CONTEXT = 128
"""Room for a prompt and a hundred tokens."""
KINDS = ("byte", "bpe", "unigram", "char", "gpt2")


def run_peer(*arguments: Any) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [PYTHON, "-I", *map(str, arguments)]
    made = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == 0, made.stderr[-3000:]
    return made.stdout


def settings_of_presets() -> dict[str, dict[str, Any]]:
    models = {name: dict(preset.model) for name, preset in PRESETS.items()}
    return {f"preset-{name}": {**model, "drop_rate": 0.0} for name, model in models.items()}


CASES = {**{name: variant.maps for name, variant in VARIANTS.items()}, **settings_of_presets()}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """These models are small: PyTorch's threads would wait for each other most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.mark.parametrize("name", CASES)
def test_stock_programs_compute_the_model(name, make_model, tokenizers, tmp_path, record_property):
    tokenizer = tokenizers[KINDS[[*CASES].index(name) % len(KINDS)]]
    tied = {"tied_head": True} if name in EXACT else {}
    sizes = {"context_length": CONTEXT, "vocab_size": tokenizer.vocab_size}
    model = make_model(**{**CASES[name], **sizes, **tied})
    loaded = LoadedRun(run_of(model, tmp_path / "run"), model, tokenizer)
    made = export_run(loaded, TARGETS["mlx-lm"], tmp_path / "folder")
    for reader in ("mlx-lm", "transformers"):
        said = parity_by(reader, made, record_property)
        assert_agrees(said)
        assert said.text_ids == "equal"


QUANTIZE = """
import sys, mlx_lm
folder, small = sys.argv[1:]
mlx_lm.convert(folder, small, quantize=True, q_group_size=32, trust_remote_code=True)
model, tokenizer = mlx_lm.load(small, trust_remote_code=True)
assert "QuantizedLinear" in {type(module).__name__ for _, module in model.named_modules()}
assert isinstance(mlx_lm.generate(model, tokenizer, [1, 2, 3], max_tokens=8), str)
"""


@pytest.mark.parametrize("variant", ["standard", "merged", "gated", "deltanet"])
def test_mlx_lm_quantizes_it_and_generates(variant, make_run, out, tmp_path):
    export_run(make_run(**VARIANTS[variant].maps), TARGETS["mlx-lm"], out)
    run_peer("-c", QUANTIZE, out, tmp_path / "quantized")


@pytest.fixture(scope="module")
def windowed(make_model, tmp_path_factory) -> dict[str, tuple[GPT, np.ndarray]]:
    """Every variant at every position with a window: the model, and its logits by transformers."""
    place, models = tmp_path_factory.mktemp("windowed"), {}
    for variant, position in WINDOWED:
        try:
            model = make_model(**VARIANTS[variant].maps, **SMALL, position=position)
        except ConfigError:  # refused by every part of this program
            continue
        folder = place / f"{variant}-{position}"
        run = run_of(model, folder / "run")
        loaded = LoadedRun(run, model, CharacterTokenizer("".join(map(chr, range(64, 124)))))
        TARGETS["mlx-lm"].write(loaded, folder)
        models[folder.name] = model
    run_peer("-c", LOGITS, place, json.dumps(WINDOW_TOKENS))
    return {name: (model, np.load(place / name / "logits.npy")) for name, model in models.items()}


WINDOW_TOKENS = [(7 * i) % 60 for i in range(10)]
LOGITS = """
import json, pathlib, sys
import numpy as np
import torch
from transformers import AutoModelForCausalLM
tokens = torch.tensor([json.loads(sys.argv[2])])
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    with torch.no_grad():
        first = model(tokens[:, :4])
        rest = model(tokens[:, 4:], past_key_values=first.past_key_values)
        both = torch.cat([first.logits, rest.logits], 1)
        np.save(folder / "logits.npy", torch.stack([model(tokens).logits[0], both[0]]).numpy())
"""


def test_pytorch_computes_every_variant_with_a_window(windowed, record_property):
    differences = {}
    for name, (model, logits) in windowed.items():
        ours = np.array(model(mx.array([WINDOW_TOKENS])))
        differences[name] = float(np.abs(ours - logits).max())
    record_property("windows", f"{len(differences)} models, up to {max(differences.values()):.1e}")
    assert len(differences) > 3 * len(VARIANTS)
    assert not {name: d for name, d in differences.items() if not d < 1e-4}


def parity_by(reader: str, made: Exported, record_property: Any) -> Parity:
    """What a program said of what was written for it."""
    if interpreter(READERS.get(reader, reader)) is None:
        pytest.skip(f"{reader} is not installed")
    assert made.unread == ()
    said = {parity.by.split()[0]: parity for parity in made.parities}[reader]
    record_property("parity", f"{made.route} | {said.line}")
    return said


BIASED = {"qkv_bias": True}
MERGED_ROPE = {"score": "merged", "position": "rope", **MODERN}
GELU_TABLE = 5e-3
"""llama.cpp looks GELU up in a table of float16."""


@pytest.mark.parametrize(
    ("to", "reader", "kind", "settings", "most"),
    [
        *(("gguf", "transformers", kind, BIASED, 1e-4) for kind in ("byte", "bpe", "gpt2")),
        *(("gguf", "llama.cpp", kind, BIASED, GELU_TABLE) for kind in ("byte", "bpe", "gpt2")),
        ("gguf", "llama.cpp", "byte", {"position": "rope", **MODERN}, 1e-4),
        ("gguf", "llama.cpp", "byte", MERGED_ROPE, 1e-4),
        ("gpt2", "TransformerLens", "byte", {}, 1e-4),
        *(
            ("transformer-lens", "TransformerLens", "byte", {"score": score}, 1e-4)
            for score in ("separate", "no_query", "merged")
        ),
    ],
)
def test_other_programs_compute_what_is_written_for_them(
    to, reader, kind, settings, most, make_run, out, record_property
):
    path = out.with_suffix(TARGETS[to].suffix)
    made = export_run(make_run(kind, **settings), TARGETS[to], path)
    assert_agrees(parity_by(reader, made, record_property), most)


MAKE_BOOK = """
import sys, torch
torch.manual_seed(5)
V, T, C = 256, 32, 48
shapes = {"tok_emb.weight": (V, C), "pos_emb.weight": (T, C), "out_head.weight": (V, C)}
vectors = ["final_norm.scale", "final_norm.shift"]
for block in ("trf_blocks.0", "trf_blocks.1"):
    maps = ("W_query", "W_key", "W_value", "out_proj")
    shapes |= {f"{block}.att.{name}.weight": (C, C) for name in maps}
    shapes |= {f"{block}.ff.layers.0.weight": (4 * C, C), f"{block}.ff.layers.0.bias": (4 * C,)}
    shapes |= {f"{block}.ff.layers.2.weight": (C, 4 * C)}
    for norm in ("norm1", "norm2"):
        vectors += [f"{block}.{norm}.scale", f"{block}.{norm}.shift"]
    vectors += [f"{block}.att.out_proj.bias", f"{block}.ff.layers.2.bias"]
shapes |= {name: (C,) for name in vectors}
weights = {name: torch.nn.Parameter(0.2 * torch.randn(shape)) for name, shape in shapes.items()}
optimizer = torch.optim.AdamW(weights.values(), lr=1e-2)
sum(weight.square().sum() for weight in weights.values()).backward()
optimizer.step()
state = {name: weight.detach() for name, weight in weights.items()}
state |= {f"trf_blocks.{i}.att.mask": torch.triu(torch.ones(T, T), diagonal=1) for i in range(2)}
torch.save({"model_state_dict": state, "optimizer_state_dict": optimizer.state_dict()}, sys.argv[1])
"""


def test_a_checkpoint_of_pytorch_is_imported_and_goes_back(tokenizers, tmp_path, record_property):
    path = tmp_path / "model_and_optimizer.pth"
    run_peer("-c", MAKE_BOOK, path)
    source = find_source(str(path), n_heads=4)
    model = source.load()
    assert_agrees(parity_of(source, model))
    loaded = LoadedRun(run_of(model, tmp_path / "run"), model, tokenizers["byte"])
    made = export_run(loaded, TARGETS["book"], tmp_path / "back.pth")
    assert_agrees(parity_by("PyTorch", made, record_property))


def assert_agrees(parity: Parity | str, most: float = 1e-4) -> None:
    """Every greedy token is equal, and no logit differs by more."""
    assert isinstance(parity, Parity), parity
    assert parity.logit_difference < most
    assert parity.greedy_equal == parity.greedy


def with_one_matrix(arrays: Arrays) -> Arrays:
    """As the book's bonus material has it: one map for query, key and value, PyTorch's norms."""
    stock = {"scale": "weight", "shift": "bias"}
    renamed: Arrays = {}
    for name, array in in_one_matrix(arrays).items():
        module, _, part = name.rpartition(".")
        renamed[f"{module}.{stock.get(part, part)}"] = array
    return renamed


def with_lora(arrays: Arrays) -> Arrays:
    """As the book's appendix E has it, every matrix of the blocks and the head."""
    tuned: Arrays = {}
    for name, array in arrays.items():
        module, _, part = name.rpartition(".")
        if array.ndim == 2 and ("W_" in name or "ff" in name or "out" in name):
            rows, columns = array.shape
            tuned[f"{module}.lora.A"] = 0.1 * mx.ones((columns, 2))
            tuned[f"{module}.lora.B"] = 0.01 * mx.arange(2.0 * rows).reshape(2, rows) / rows
        linear = array.ndim < 3 and ("W_" in name or "ff" in name or "out" in name)
        tuned[f"{module}.linear.{part}" if linear else name] = array
    return tuned


@pytest.mark.parametrize("spelled", [with_one_matrix, with_lora])
def test_pytorch_computes_a_checkpoint_of_the_book(spelled, make_model, tmp_path, record_property):
    model = make_model(vocab_size=256, qkv_bias=True)
    path = tmp_path / "model.pth"
    write_checkpoint(path, spelled(to_book(named_arrays(model))))
    source = find_source(str(path), n_heads=4, lora_alpha=2.0)
    parity = parity_of(source, source.load())
    assert_agrees(parity)
    record_property("parity", f"import of {spelled.__name__} | {getattr(parity, 'line', '')}")


MAKE_GPT2 = """
import sys, torch, transformers as t
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
level = pre_tokenizers.ByteLevel(add_prefix_space=sys.argv[2] == "prefix")
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = level
trainer = trainers.BpeTrainer(
    vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=level.alphabet()
)
text = "It was the best of times, it was the worst of times. "
tokenizer.train_from_iterator([text] * 20, trainer)
t.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(sys.argv[1])
size = tokenizer.get_vocab_size()
config = t.GPT2Config(vocab_size=size, n_positions=128, n_embd=64, n_head=4, n_layer=2)
t.GPT2LMHeadModel(config).save_pretrained(sys.argv[1])
"""


def test_a_tokenizer_whose_special_token_is_first_is_read_as_transformers_reads_it(tmp_path):
    run_peer("-c", MAKE_GPT2, tmp_path / "theirs", "plain")
    run, parity = import_run(find_source(str(tmp_path / "theirs")), tmp_path / "run", "tales")
    assert_agrees(parity)
    assert isinstance(parity, Parity)
    assert parity.text_ids == "equal"
    assert load_run(str(run.path)).tokenizer.encode("<|endoftext|>").tolist() == [0]


def test_a_wrong_number_of_heads_shows(make_model, tmp_path):
    path = tmp_path / "model.pth"
    write_checkpoint(path, to_book(named_arrays(make_model(vocab_size=256, qkv_bias=True))))
    source = find_source(str(path), n_heads=4)
    parity = parity_of(replace(source, facts={"n_heads": 2, "lora_alpha": 1.0}), source.load())
    assert isinstance(parity, Parity)
    assert parity.logit_difference > 0.1


MAKE_RANDOM_GPT2 = """
import sys, torch, transformers as t
torch.manual_seed(0)
config = t.GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_head=4, n_layer=3)
model = t.GPT2LMHeadModel(config)
for weight in model.parameters():
    weight.data.add_(0.05 * torch.randn_like(weight))
model.save_pretrained(sys.argv[1])
"""


def test_gpt2_of_transformers_converts_to_merged_and_goes_back(tokenizers, tmp_path):
    run_peer("-c", MAKE_RANDOM_GPT2, tmp_path / "gpt2")
    source = find_source(str(tmp_path / "gpt2"))
    model = source.load()
    assert_agrees(parity_of(source, model))
    merged = convert(model, "merged")
    loaded = LoadedRun(run_of(merged, tmp_path / "run"), merged, tokenizers["byte"])
    made = export_run(loaded, TARGETS["gpt2"], tmp_path / "back")
    assert {p.by.split()[0] for p in made.parities} >= {"mlx-lm", "transformers"}
    assert max(p.logit_difference for p in made.parities) < 1e-3
