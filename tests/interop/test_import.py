"""Import: the book, GPT-2 and nanoGPT, strictly; then a run like any other."""

import ast
import json
import sys
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import Arrays, load_arrays, named_arrays
from mlx_attn.convert.measure import convert_run
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.interop.imported import find_checkpoint, find_tokenizer, import_run
from mlx_attn.interop.names import to_book, to_gpt2
from mlx_attn.interop.targets import TARGETS, export_run
from mlx_attn.run_directory import open_run
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.corpus import prepare

from .conftest import TEXT

TOKENS = mx.array([[5, 1, 30, 7, 7, 2]])


@pytest.fixture
def book(make_model, tmp_path):
    """A model, its state dict under the book's names, and a function that writes one."""
    model = make_model(vocab_size=256, qkv_bias=True)

    def write(arrays: Arrays):
        plain = {name: mx.contiguous(array) for name, array in arrays.items()}
        mx.save_safetensors(str(tmp_path / "model.safetensors"), plain)
        return tmp_path / "model.safetensors"

    return model, to_book(named_arrays(model)), write


def agrees(path, model, **windows: int) -> bool:
    read = find_checkpoint(str(path), n_heads=4, **windows).model
    assert all(np.asarray(weight).flags.c_contiguous for weight in named_arrays(read).values())
    return bool(mx.allclose(read(TOKENS), model(TOKENS), rtol=0, atol=1e-5))


def in_one_matrix(arrays: Arrays) -> Arrays:
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
    "prefixes in any order": lambda arrays: {f"module._orig_mod.{k}": a for k, a in arrays.items()},
    "without masks": lambda arrays: {k: a for k, a in arrays.items() if "mask" not in k},
    "query, key and value in one matrix": in_one_matrix,
}


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
def test_a_checkpoint_of_the_book_is_read_in_every_spelling(spelled, book):
    model, arrays, write = book
    assert agrees(write(spelled(arrays)), model)


LATENT = (("W_latent", "W_DKV"), ("W_up_key", "W_UK"), ("W_up_value", "W_UV"))


@pytest.mark.parametrize(
    "settings",
    [{"n_kv_heads": 2}, {"score": "latent", "value": "latent", "latent_dim": 12}],
    ids=["grouped queries", "a latent"],
)
def test_the_attention_of_chapter_4_is_read_by_its_names_and_shapes(settings, make_model, book):
    model = make_model(vocab_size=256, **settings)
    arrays = to_book(named_arrays(model))
    for i in range(2):
        for ours, theirs in LATENT if "score" in settings else ():
            block = f"trf_blocks.{i}.att."
            arrays[f"{block}{theirs}.weight"] = arrays.pop(f"{block}{ours}.weight")
    assert agrees(book[2](arrays), model)
    without = {name: array for name, array in arrays.items() if "out_proj.bias" not in name}
    assert not find_checkpoint(str(book[2](without)), 4).model.trf_blocks[0].att.out_proj.bias.any()


def test_windows_that_no_state_dict_tells_are_given(make_model, book, gpt2):
    windows = {"window": 3, "global_every": 2}
    model = make_model(vocab_size=256, **windows)
    path = str(book[2](to_book(named_arrays(model))))
    assert not agrees(path, model)
    assert agrees(path, model, **windows)
    with pytest.raises(ConfigError, match="only models of chapter 4 may have"):
        find_checkpoint(str(gpt2[1]), **windows)


def test_rows_past_the_tokenizer_are_cut_if_one_says_so(make_model, book, tmp_path):
    model = make_model(vocab_size=300)
    source = find_checkpoint(str(book[2](to_book(named_arrays(model)))), 4)
    with pytest.raises(ConfigError, match="--cut-vocabulary if its last 44 rows are padding"):
        find_tokenizer(source, "byte")
    read = import_run(source, tmp_path / "run", "tales", "byte", cut=True).load_model()
    assert mx.allclose(read(TOKENS), model(TOKENS)[..., :256], rtol=0, atol=1e-5)


def test_openais_variables_are_read_and_their_files_refused_with_one_line(make_model, tmp_path):
    model, folder = make_model(qkv_bias=True, tied_head=True), tmp_path / "124M"
    folder.mkdir()
    (folder / "model.ckpt.index").touch()
    (folder / "hparams.json").write_text('{"n_head": 4}')
    for path in (folder, folder / "model.ckpt.index"):
        with pytest.raises(RunError) as told:
            find_checkpoint(str(path))
        assert len(ast.parse(str(told.value).partition("': ")[2]).body) == 3
    variables: dict[str, Any] = {}
    for name, array in to_gpt2(named_arrays(model)).items():
        letter = "b" if name.endswith("bias") else "g" if "ln_" in name else "w"
        module = name.rpartition(".")[0].replace("h.", "h").replace(".", "/")
        matrix = array[None] if letter == "w" and "/" in module else array
        name = f"model/{module}" + f"/{letter}" * ("/" in module or "ln" in module)
        variables[name] = np.array(matrix)
    np.savez(folder / "model.npz", **{name: one.astype(">f4") for name, one in variables.items()})
    read = find_checkpoint(str(folder / "model.npz")).model
    assert mx.allclose(read(TOKENS), model(TOKENS), rtol=0, atol=1e-5)


def test_an_archive_that_unpacks_to_far_more_than_weights_do_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "model.npz", np.zeros(10**6))
    with pytest.raises(RunError, match="its arrays claim 8,000,128 bytes, far more than the file"):
        find_checkpoint(str(tmp_path / "model.npz"))


NAN, GATE = mx.full((32,), mx.nan), mx.ones((4, 32))
NOT_CAUSAL = mx.triu(mx.ones((48, 48)), k=1) + mx.tril(mx.ones((48, 48)), k=-8)


@pytest.mark.parametrize(
    ("name", "odd", "message"),
    [
        ("trf_blocks.0.att.q_norm.weight", mx.ones((8,)), "no place for trf_blocks.0.att.q_norm"),
        ("module.final_norm.scale", mx.ones((32,)), "two of its arrays stand for one weight"),
        ("trf_blocks.1.att.mask", NOT_CAUSAL, "trf_blocks.1.att.mask is not the causal mask"),
        ("trf_blocks.0.att.W_key.weight", mx.array(1.0), "such arrays .tuple index out of range"),
        ("trf_blocks.1.norm2.shift", None, "lacks trf_blocks.1.norm2.bias"),
        ("out_head.weight", mx.ones((2, 32)), "2 classes and not a vocabulary's 256 tokens"),
        ("final_norm.scale", NAN, "final_norm.weight: not all of its numbers are finite"),
        ("trf_blocks.0.ff.gate.weight", GATE, "blocks.0.ff.gate.weight is of a mixture of experts"),
    ],
)
def test_every_tensor_that_is_not_used_or_missing_is_refused_by_name(name, odd, message, book):
    _, arrays, write = book
    changed = {key: array for key, array in {**arrays, name: odd}.items() if array is not None}
    with pytest.raises(RunError, match=message):
        find_checkpoint(str(write(changed)), n_heads=4)


TABLES = dict.fromkeys(("wte.weight", "wpe.weight"), mx.ones((3, 4)))
HALF_A_BLOCK = {"h.0.mlp.c_fc.weight": mx.ones((4, 16)), "h.0.attn.c_attn.bias": mx.ones((1, 25))}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"conv.weight": mx.ones((2, 2))}, "no state dict of the book, GPT-2 or nanoGPT"),
        ({**TABLES, **HALF_A_BLOCK}, "no model known here has such arrays"),
    ],
)
def test_arrays_of_no_model_known_here_are_refused(arrays, message, book):
    with pytest.raises(RunError, match=message):
        find_checkpoint(str(book[2](arrays)), n_heads=4)


def test_what_no_file_says_is_asked_for(book):
    _, arrays, write = book
    path = str(write(arrays))
    with pytest.raises(ConfigError, match="its 32 numbers are cut into: give --n-heads"):
        find_checkpoint(path)
    with pytest.raises(ConfigError, match="a vocabulary of 256 is not GPT-2's: give --tokenizer"):
        find_tokenizer(find_checkpoint(path, n_heads=4))
    with pytest.raises(ConfigError, match="--tokenizer bpe: its vocabulary would be made from"):
        find_tokenizer(find_checkpoint(path, n_heads=4), "bpe")
    headless = {name: array for name, array in arrays.items() if name != "out_head.weight"}
    with pytest.raises(RunError, match=r"it lacks out_head\.weight"):
        find_checkpoint(str(write(headless)), n_heads=4)


def test_the_tokenizer_of_a_run_beside_it_is_taken_and_one_of_another_size_refused(book, make_run):
    _, arrays, write = book
    path = write(arrays)
    ByteTokenizer().save(path.parent)
    assert find_tokenizer(find_checkpoint(str(path), n_heads=4)).kind == "byte"
    other = make_run("char").run.path
    with pytest.raises(ConfigError, match=r"char tokenizer has \d+ tokens, and the model 256"):
        find_tokenizer(find_checkpoint(str(path), n_heads=4), str(other))


class Tensor:
    """As much of PyTorch's tensor as is read."""

    def __init__(self, numbers: np.ndarray):
        self.numbers = numbers
        self.numel, self.element_size = lambda: numbers.size, lambda: numbers.itemsize
        self.numpy = lambda: numbers
        self.detach = self.float = lambda: self
        self.is_floating_point = lambda: numbers.dtype.kind == "f"


@pytest.fixture
def torch(monkeypatch):
    """A fake PyTorch that loads the given content."""
    asked = SimpleNamespace(Tensor=Tensor, content={})

    def load(path, map_location, weights_only):
        assert weights_only
        return asked.content

    asked.load = load
    monkeypatch.setitem(sys.modules, "torch", asked)
    return asked


def test_a_pth_is_read_by_pytorch_and_without_it_a_line_makes_a_readable_file(
    book, torch, tmp_path, monkeypatch
):
    model, arrays, _ = book
    path = tmp_path / "model.pth"
    path.write_bytes(bytes(500_000))
    tensors = {name: Tensor(np.array(array)) for name, array in arrays.items()}
    torch.content = {"model_state_dict": tensors, "optimizer_state_dict": {"state": {}}}
    assert agrees(path, model)
    tensors["final_norm.scale"] = Tensor(np.ones(32, np.int8))  # quantized, without its scale
    with pytest.raises(
        RunError, match=r"final_norm\.weight is .*int8, which are no floating-point"
    ):
        find_checkpoint(str(path), n_heads=4)
    monkeypatch.setattr(tensors["final_norm.scale"], "numpy", len)  # a TypeError, as PyTorch's
    with pytest.raises(RunError, match="a tensor is quantized or sparse"):
        find_checkpoint(str(path), n_heads=4)
    path.write_bytes(bytes(1000))
    with pytest.raises(RunError, match=r"claim .+ bytes, far more than the file has"):
        find_checkpoint(str(path), n_heads=4)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RunError) as told:
        find_checkpoint(str(path), n_heads=4)
    line = str(told.value).partition("line of Python: ")[2]
    assert len(ast.parse(line).body) == 3


def test_a_checkpoint_of_nanogpt_says_its_heads(make_model, torch, tmp_path):
    model = make_model(bias=False, tied_head=True, activation="gelu_exact")
    names = {f"transformer.{name}": array for name, array in to_gpt2(named_arrays(model)).items()}
    tensors = {}
    for name, array in names.items():  # its matrices are (out, in)
        is_matrix = ".h." in name and name.endswith(".weight") and ".ln_" not in name
        tensors[f"_orig_mod.{name}"] = Tensor(np.array(array.T if is_matrix else array))
    tensors["_orig_mod.lm_head.weight"] = tensors["_orig_mod.transformer.wte.weight"]
    torch.content = {"model": tensors, "model_args": {"n_head": 4}, "iter_num": 3}
    (tmp_path / "ckpt.pt").write_bytes(bytes(500_000))
    read = find_checkpoint(str(tmp_path / "ckpt.pt"))
    assert (read.model.config.bias, read.model.config.n_heads) == (False, 4)
    assert read.what == "nanoGPT (exact GELU)"
    with pytest.raises(ConfigError, match="it says that it has 4 heads: leave --n-heads out"):
        find_checkpoint(str(tmp_path / "ckpt.pt"), n_heads=2)
    assert mx.allclose(read.model(TOKENS), model(TOKENS), rtol=0, atol=1e-5)
    tensors["transformer.h.0.attn.bias"] = Tensor(np.tril(np.ones((1, 1, 48, 48), np.float32)))
    read = find_checkpoint(str(tmp_path / "ckpt.pt"))
    assert read.what == "minGPT or old nanoGPT (GELU in the tanh form)"
    assert read.model.config.activation == "gelu"


@pytest.fixture
def gpt2(make_model, tmp_path):
    """A model, and its folder as transformers saves one."""
    model, folder = make_model(qkv_bias=True, tied_head=True), tmp_path / "gpt2"
    folder.mkdir()
    c = model.config
    keys = {"n_embd": c.emb_dim, "n_head": c.n_heads, "n_layer": c.n_layers, "n_inner": None}
    keys |= {"vocab_size": c.vocab_size, "n_positions": c.context_length, "model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(keys))
    arrays = {
        f"transformer.{name}": mx.contiguous(a) for name, a in to_gpt2(named_arrays(model)).items()
    }
    arrays["transformer.h.0.attn.bias"] = mx.tril(mx.ones((1, 1, 48, 48)))  # a mask
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, {"format": "pt"})
    return model, folder


def test_a_folder_of_gpt2_may_hold_its_weights_in_the_files_that_an_index_lists(gpt2):
    model, folder = gpt2
    assert agrees(folder, model)
    whole = folder / "model.safetensors"
    arrays, places = load_arrays(whole)[0], {}
    for n in range(2):
        names = sorted(arrays)[n::2]
        mx.save_safetensors(str(folder / f"model-{n}"), {name: arrays[name] for name in names})
        places |= dict.fromkeys(names, f"model-{n}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"wte.weight": "of an earlier model"}}')
    assert agrees(folder, model)
    whole.rename(folder.parent / whole.name)
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    assert agrees(folder, model)
    (folder / "twice.safetensors").hardlink_to(folder / "model-0.safetensors")
    faults = {name: f"no file '{name}' in this folder" for name in ("gone", "../model.safetensors")}
    for other, fault in (faults | {"twice.safetensors": "two of its files hold"}).items():
        index.write_text(json.dumps({"weight_map": {**places, "wte.weight": other}}))
        with pytest.raises(RunError, match=fault):
            find_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "llama", "its model type is 'llama'"),
        ("layer_norm_epsilon", 1e-6, "layer_norm_epsilon=1e-06 is not computed here"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_name(key, value, message, gpt2):
    _, folder = gpt2
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(RunError, match=message):
        find_checkpoint(str(folder))


def test_a_published_name_is_downloaded(gpt2, monkeypatch):
    model, folder = gpt2
    hub = SimpleNamespace(snapshot_download=lambda name, allow_patterns: str(folder))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert agrees("somebody/gpt2-tiny", model)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RunError, match=r"pip install 'mlx-attn\[hub\]'"):
        find_checkpoint("gpt2-medium")


@pytest.mark.parametrize(
    ("kind", "to", "settings"),
    [
        ("bpe", "gpt2", {"qkv_bias": True}),
        ("gpt2", "book", {}),
        ("byte", "mlx-lm", {"score": "merged", "position": "alibi"}),
    ],
)
def test_what_was_exported_comes_back_as_a_run_with_its_tokenizer(
    kind, to, settings, make_run, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "text.txt").write_text(TEXT)
    loaded, out = make_run(kind, **settings), tmp_path / "out"
    export_run(loaded, TARGETS[to], out)
    run = import_run(find_checkpoint(str(out)), tmp_path / "back", str(tmp_path / "text.txt"))
    assert run.config.qkv_bias == loaded.model.config.qkv_bias
    assert mx.allclose(run.load_model()(TOKENS), loaded.model(TOKENS), rtol=0, atol=1e-5)
    text = open_run(run.path).settings["text"]
    corpus = prepare(text["data"], text["tokenizer"], text["vocab_size"])
    assert corpus.tokenizer.encode(TEXT).tolist() == loaded.tokenizer.encode(TEXT).tolist()
    if to == "gpt2":
        _, outcome = convert_run(run, "merged", tmp_path / "merged", corpus)
        assert outcome.logits.exact_difference < 1e-4
        with pytest.raises(RunError, match="model for other programs: 'mlx-attn import"):
            open_run(out)
