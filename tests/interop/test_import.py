"""Import: the book's checkpoints in all their spellings, GPT-2, GGUF; then runs like any other."""

import json
import sys
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_attn.arrays import load_arrays, named_arrays
from mlx_attn.cli.output import model_facts
from mlx_attn.convert.measure import convert_run
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.interop.imported import find_source, find_tokenizer, import_run, memory_peaks
from mlx_attn.interop.names import from_book, to_book, to_gpt2
from mlx_attn.interop.targets import TARGETS, export_run
from mlx_attn.interop.torch_archive import write_checkpoint
from mlx_attn.model.config import GPTConfig, find_preset
from mlx_attn.run_directory import open_run
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.corpus import prepare

from .conftest import TEXT

TOKENS = mx.array([[5, 1, 30, 7, 7, 2]])


@pytest.fixture
def book(make_model, tmp_path):
    """A model, its state dict under the book's names, and a function that writes one."""
    model = make_model(vocab_size=256, qkv_bias=True)

    def write(arrays):
        write_checkpoint(tmp_path / "model.pth", arrays)
        return tmp_path / "model.pth"

    return model, to_book(named_arrays(model)), write


def agrees(path, model) -> bool:
    loaded = find_source(str(path), n_heads=4).load()
    return bool(mx.allclose(loaded(TOKENS), model(TOKENS), rtol=0, atol=1e-5))


def in_one_matrix(arrays):
    fast = {k: v for k, v in arrays.items() if ".W_" not in k and "out_proj" not in k}
    for i in range(2):
        block = f"trf_blocks.{i}.att"
        for part in ("weight", "bias"):
            three = [arrays[f"{block}.W_{name}.{part}"] for name in ("query", "key", "value")]
            fast[f"{block}.qkv.{part}"] = mx.concatenate(three)
            fast[f"{block}.proj.{part}"] = arrays[f"{block}.out_proj.{part}"]
    return fast


SPELLINGS = {
    "the book's state dict": lambda arrays: arrays,
    "a compiled model's prefix": lambda arrays: {f"_orig_mod.{k}": a for k, a in arrays.items()},
    "without masks": lambda arrays: {k: a for k, a in arrays.items() if "mask" not in k},
    "query, key and value in one matrix": in_one_matrix,
}


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
def test_a_checkpoint_of_the_book_is_read_in_every_spelling(spelled, book):
    model, arrays, write = book
    assert agrees(write(spelled(arrays)), model)


def test_a_head_that_is_the_embedding_stays_tied(book):
    _, arrays, write = book
    path = write({**arrays, "out_head.weight": arrays["tok_emb.weight"]})
    assert find_source(str(path), n_heads=4).config.tied_head
    assert not find_source(str(write(arrays)), n_heads=4).config.tied_head


def test_lora_is_added_to_its_matrix():
    plain = {"tok_emb.weight": mx.ones((4, 2)), "trf_blocks.0.norm1.scale": mx.ones((2,))}
    lora = {
        "trf_blocks.0.ff.layers.0.linear.weight": mx.zeros((3, 2)),
        "trf_blocks.0.ff.layers.0.lora.A": mx.array([[1.0], [2.0]]),
        "trf_blocks.0.ff.layers.0.lora.B": mx.array([[1.0, 0.0, 3.0]]),
    }
    made = from_book({**plain, **lora}, lora_alpha=2.0)
    assert made["trf_blocks.0.ff.layers.0.weight"].tolist() == [[2, 4], [0, 0], [6, 12]]
    assert not [name for name in made if "lora" in name]


CLASSES = {"out_head.weight": mx.ones((2, 32)), "out_head.bias": mx.ones((2,))}
REFUSED = {
    "2 classes and not a vocabulary's 256 tokens: a classifier": (CLASSES, 4),
    r"conv\.weight": ({"conv.weight": mx.ones((2, 2))}, 4),
    "its 32 numbers are cut into: give --n-heads": ({}, None),
    "a vocabulary of 256 is not GPT-2's: give --tokenizer": ({}, 4),
}


@pytest.mark.parametrize(("message", "odd"), REFUSED.items(), ids=REFUSED)
def test_a_checkpoint_that_says_too_little_or_is_something_else_is_refused(book, message, odd):
    _, arrays, write = book
    changes, n_heads = odd
    path = write(changes if "conv.weight" in changes else arrays | changes)
    with pytest.raises((ConfigError, RunError), match=message):
        find_tokenizer(find_source(str(path), n_heads=n_heads))


@pytest.mark.parametrize(
    "odd",
    [
        {"tok_emb.weight": mx.zeros((256,))},
        {"wte.weight": mx.zeros((3, 4)), "h.0.attn.c_attn.bias": mx.zeros((1, 24))},
    ],
)
def test_arrays_that_are_not_what_their_names_say_are_one_line(book, odd):
    _, arrays, write = book
    with pytest.raises(RunError, match=r"^[^\n]+model\.pth: [^\n]+$"):
        find_source(str(write(arrays | odd)), n_heads=4).load()


def test_the_tokenizer_of_a_run_beside_it_is_taken_and_one_of_another_size_refused(book, make_run):
    _, arrays, write = book
    checkpoint = write(arrays)
    ByteTokenizer().save(checkpoint.parent)
    assert find_tokenizer(find_source(str(checkpoint), n_heads=4)).kind == "byte"
    other = make_run("char").run.path
    with pytest.raises(ConfigError, match=r"char tokenizer has \d+ tokens, and the model 256"):
        find_tokenizer(find_source(str(checkpoint), n_heads=4), str(other))


def gpt2_folder(model, folder):
    """A folder as transformers saves one: the prefix, and a key that stands for GPT-2's own."""
    folder.mkdir()
    c = model.config
    keys = {"n_embd": c.emb_dim, "n_head": c.n_heads, "n_layer": c.n_layers, "n_inner": None}
    keys |= {"vocab_size": c.vocab_size, "n_positions": c.context_length, "model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(keys))
    arrays = {
        f"transformer.{name}": mx.contiguous(a) for name, a in to_gpt2(named_arrays(model)).items()
    }
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, {"format": "pt"})
    return folder


@pytest.fixture
def gpt2(make_model, tmp_path):
    """A model, and its folder."""
    model = make_model(qkv_bias=True, tied_head=True)
    return model, gpt2_folder(model, tmp_path / "gpt2")


def test_a_folder_of_gpt2_may_hold_its_weights_in_the_files_that_an_index_lists(gpt2):
    model, folder = gpt2
    assert agrees(folder, model)
    with_index(folder, in_shards(folder))
    mx.save_safetensors(str(folder / "zzz.safetensors"), {"wte.weight": mx.ones((2, 2))})
    assert agrees(folder, model)


@pytest.mark.parametrize("file", ["gone.safetensors", "../model.safetensors"])
def test_an_index_names_files_of_its_folder(file, gpt2, tmp_path):
    _, folder = gpt2
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with_index(folder, {"wte.weight": file})
    with pytest.raises(RunError, match=f"there is no file '{file}' in this folder"):
        find_source(str(folder)).load()


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "llama"), ("layer_norm_epsilon", 1e-6)],
)
def test_what_is_not_computed_here_is_refused_by_name(key, value, gpt2):
    _, folder = gpt2
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(RunError, match=f"{key}={value!r} is not computed here"):
        find_source(str(folder))


def in_shards(folder, number=2):
    """Cut the weights of a folder into several files, which an index lists."""
    whole = folder / "model.safetensors"
    arrays, places = load_arrays(whole)[0], {}
    for n in range(number):
        file, names = f"model-{n + 1}-of-{number}.safetensors", sorted(arrays)[n::number]
        mx.save_safetensors(str(folder / file), {name: arrays[name] for name in names})
        places |= dict.fromkeys(names, file)
    whole.unlink()
    return places


def with_index(folder, places):
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_published_name_is_downloaded(gpt2, monkeypatch):
    model, folder = gpt2
    asked = []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert agrees("somebody/gpt2-tiny", model)
    assert asked[0][0] == "somebody/gpt2-tiny"
    assert "*.bin" not in asked[0][1]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'mlx-attn\[hub\]'"):
        find_source("gpt2-medium")


@pytest.mark.parametrize(("kind", "to"), [("bpe", "gpt2"), ("gpt2", "gpt2"), ("byte", "gguf")])
def test_what_was_exported_comes_back_with_its_tokenizer(kind, to, make_run, tmp_path):
    loaded, path = make_run(kind, qkv_bias=True), tmp_path / f"out{TARGETS[to].suffix}"
    export_run(loaded, TARGETS[to], path)
    assert agrees(path, loaded.model)
    if to == "gpt2":
        tokenizer = find_tokenizer(find_source(str(path)))
        assert tokenizer.encode(TEXT).tolist() == loaded.tokenizer.encode(TEXT).tolist()


def test_an_imported_run_converts_and_trains_on_its_text_with_its_tokenizer(
    make_run, out, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "text.txt").write_text(TEXT)
    exported = make_run("bpe", qkv_bias=True)
    export_run(exported, TARGETS["gpt2"], out)
    source = find_source(str(out))
    place = tmp_path / "imported"
    run = import_run(source, place, str(tmp_path / "text.txt"))[0]
    text = open_run(run.path).settings["text"]
    corpus = prepare(text["data"], text["tokenizer"], text["vocab_size"])
    assert corpus.tokenizer.encode(TEXT).tolist() == exported.tokenizer.encode(TEXT).tolist()
    _, outcome = convert_run(run, "merged", tmp_path / "merged", corpus)
    assert outcome.logits.exact_difference < 1e-4


def test_the_memory_of_gpt2_small_is_estimated():
    config = GPTConfig(**{**find_preset("gpt2").model, "vocab_size": 50257})
    facts = model_facts(config)
    assert facts["parameters"] == 124_439_808
    assert facts["cache"] == 4 * 1024 * 12 * 2 * 768
    assert memory_peaks(config)["import_peak"] > 3 * facts["weights"]
