"""Read a checkpoint of another program: the book's GPTModel, GPT-2, nanoGPT, or an export of ours.

Nothing of a file is executed. Reading is strict: a tensor that the model has no place for, and one
that is missing, are refused by name. Only masks and the states of optimizers may be left out.
"""

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np

from mlx_attn.arrays import Arrays, load_arrays
from mlx_attn.attention.catalog import find_variant
from mlx_attn.errors import ConfigError, RunError, optional
from mlx_attn.interop import names
from mlx_attn.interop.mlx_lm import MODEL_TYPE
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.gpt import GPT, gpt_from
from mlx_attn.records import Count, Object, as_record, read_record

WEIGHTS = "model.safetensors"
_TORCH = (".pth", ".pt", ".bin", ".ckpt")
SUFFIXES = (".safetensors", ".npz", *_TORCH)
"""The names of files of weights end like this."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model of another program."""

    path: Path  # the file or folder
    what: str  # a few words about its format
    model: GPT


def read_checkpoint(path: Path, n_heads: int = 0) -> Checkpoint:
    """Return the model in a folder with config.json, or in a file of weights.

    `n_heads` is the number of heads, if no file has it.

    Raises:
        RunError: It cannot be read, or is not a supported model.
        ConfigError: No file has the number of heads, so it must be given; or it has another.
    """
    if ".ckpt." in path.name or (path.name == WEIGHTS and (path.parent / "config.json").is_file()):
        path = path.parent
    state, said = _of_folder(path) if path.is_dir() else _of_file(path)
    if MODEL_TYPE in said:
        what, config, arrays = "a model of mlx_attn", config_from(said[MODEL_TYPE]), state
    else:
        try:
            what, arrays = names.translated(state, path)
            config = _config_of(path, what, arrays, n_heads, said)
        except ConfigError:
            raise
        except (ValueError, LookupError, OverflowError) as error:
            raise RunError(f"{path}: no model known here has such arrays ({error})") from error
        if config.tied_head:
            arrays.pop("out_head.weight", None)  # saved twice
    if n_heads not in (0, config.n_heads):
        raise ConfigError(
            f"{path}: it says that it has {config.n_heads} heads: leave --n-heads out"
        )
    return Checkpoint(path, what, gpt_from(config, arrays, path))


def _config_of(path: Path, what: str, arrays: Arrays, n_heads: int, said: Object) -> GPTConfig:
    """Derive the configuration from the shapes of a state dict and what is said beside it."""
    vocab_size, emb_dim = arrays["tok_emb.weight"].shape
    n_heads = said.get("n_heads") or n_heads
    if not n_heads:
        raise ConfigError(
            f"{path}: no file says how many heads its {emb_dim} numbers are cut into: give "
            "--n-heads"
        )
    keys, latent = (arrays.get(f"trf_blocks.0.att.{name}.weight") for name in ("W_key", "W_latent"))
    attention: dict[str, Any] = {}
    if keys is not None:  # fewer key heads than heads in chapter 4's grouped-query attention
        attention = {"n_kv_heads": keys.shape[0] * n_heads // emb_dim}
    elif latent is not None:  # its multi-head latent attention
        attention = {**find_variant("mla").maps, "latent_dim": latent.shape[0]}
    config = GPTConfig(
        **attention,
        vocab_size=vocab_size,
        context_length=arrays["pos_emb.weight"].shape[0],
        emb_dim=emb_dim,
        hidden_dim=arrays["trf_blocks.0.ff.layers.0.weight"].shape[0],
        n_heads=n_heads,
        n_layers=len({name.split(".")[1] for name in arrays if name.startswith("trf_blocks.")}),
        qkv_bias="trf_blocks.0.att.W_query.bias" in arrays,
        bias="final_norm.bias" in arrays,
        activation="gelu_exact" if what == names.NANOGPT else "gelu",
        tied_head=what != names.BOOK,  # the others' head is the embedding, and may be left out
    )
    if (head := arrays.get("out_head.weight")) is not None:
        said = {**said, "tied_head": bool(mx.array_equal(head, arrays["tok_emb.weight"]).item())}
    return replace(config, **(said | {"n_heads": n_heads}))


# Folders.


class _GPT2(msgspec.Struct):
    """The keys of GPT-2's config.json that are read, with the values of GPT-2 small."""

    vocab_size: Count = 50257
    context_length: Count = msgspec.field(default=1024, name="n_positions")
    emb_dim: Count = msgspec.field(default=768, name="n_embd")
    n_heads: Count = msgspec.field(default=12, name="n_head")
    n_layers: Count = msgspec.field(default=12, name="n_layer")
    hidden_dim: Count | None = msgspec.field(default=None, name="n_inner")
    tied_head: bool = msgspec.field(default=True, name="tie_word_embeddings")
    model_type: str = ""
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False


_SIZES = _GPT2.__struct_fields__[:7]
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


BOOK_SETTINGS = ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers", "qkv_bias")
"""The settings of the book's GPTModel that its config.json must have."""


def gpt2_config(config: GPTConfig) -> dict[str, Any]:
    """Return the config.json of a model in GPT-2's form."""
    sizes = {key: getattr(config, key) for key in _SIZES}
    return {
        "architectures": ["GPT2LMHeadModel"],
        **msgspec.to_builtins(_GPT2(**sizes, model_type="gpt2")),
        "n_ctx": config.context_length,
        "bos_token_id": None,
        "eos_token_id": None,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.drop_rate),
    }


def _of_folder(folder: Path) -> tuple[Arrays, Object]:
    """Return the arrays of a folder, and the settings in its config.json by our keys."""
    path = folder / "config.json"
    if any(folder.glob("*.ckpt.*")):
        raise RunError(_TENSORFLOW.format(path=folder, name=folder / "model.npz"))
    keys = read_record(path)
    named = keys.get("model_type")
    if named == MODEL_TYPE:
        said = {MODEL_TYPE: as_record(keys.get(MODEL_TYPE), Object, str(path))}
    elif named == "gpt2":
        said = _gpt2_settings(path, keys)
    elif named is None and "emb_dim" in keys:
        sizes = {key: keys.get(key) for key in BOOK_SETTINGS}
        said = as_record(sizes, dict[str, Count | bool], str(path))
    else:
        raise RunError(
            f"{path}: its model type is {named!r}; only the book's GPTModel, GPT-2, nanoGPT and "
            "what 'mlx-attn export' writes are read"
        )
    return _state_of_folder(folder), said


def _gpt2_settings(path: Path, record: Object) -> Object:
    keys = as_record(record, _GPT2, str(path))
    for key, supported in _SUPPORTED.items():
        if (value := getattr(keys, key)) not in supported:
            words = " or ".join(map(repr, supported))
            raise RunError(f"{path}: {key}={value!r} is not computed here, only {words}")
    sizes = {key: getattr(keys, key) or 0 for key in _SIZES}  # n_inner may be null
    activation = "gelu_exact" if keys.activation_function == "gelu" else "gelu"
    return {**sizes, "qkv_bias": True, "bias": True, "activation": activation}


# Weights.


def _state_of_folder(folder: Path) -> Arrays:
    """Return the arrays of model.safetensors, or of the files over which it is split."""
    index, files = folder / f"{WEIGHTS}.index.json", {WEIGHTS}
    if index.is_file() and not (folder / WEIGHTS).is_file():  # the whole file is read first
        places = as_record(read_record(index).get("weight_map"), dict[str, str], str(index))
        files = {*places.values()}
    state: Arrays = {}
    for name in sorted(files):
        if Path(name).name != name or not (folder / name).is_file():
            raise RunError(
                f"{folder}: there is no file '{name}' in this folder; save the model with "
                "safe_serialization=True"
            )
        arrays = load_arrays(folder / name)[0]
        if both := state.keys() & arrays.keys():
            raise RunError(f"{folder}: two of its files hold {min(both)}: save the model again")
        state |= arrays
    return state


def _of_file(path: Path) -> tuple[Arrays, Object]:
    """Return the state dict in a file, and the number of heads if it is recorded there."""
    if not path.is_file():
        raise RunError(f"{path}: a pipe or a device, not a file or a folder")
    if path.suffix not in SUFFIXES:
        raise RunError(
            f"{path}: weights are read from .safetensors, .npz and PyTorch's .pth or .pt"
        )
    if path.suffix in _TORCH:
        return _of_torch(path)
    state = _of_npz(path) if path.suffix == ".npz" else load_arrays(path)[0]
    settings = path.with_name("hparams.json")
    if names.OPENAI not in state or not settings.is_file():
        return state, {}
    return state, {"n_heads": as_record(read_record(settings).get("n_head", 0), int, str(settings))}


def _of_npz(path: Path) -> Arrays:
    try:
        with zipfile.ZipFile(path) as archive:
            claimed = sum(part.file_size for part in archive.infolist())
        if claimed > 100 * path.stat().st_size:  # masks shrink the most
            raise ValueError(f"its arrays claim {claimed:,} bytes, far more than the file has")
        with np.load(path, allow_pickle=False) as file:
            return {k: mx.array(a.astype(a.dtype.newbyteorder("="))) for k, a in file.items()}
    except Exception as error:  # whatever NumPy and its archive raise
        raise RunError(f"{path}: cannot be read ({error})") from error


_WITHOUT_TORCH = """{path}: only PyTorch reads this file, and it is not installed here: install \
torch, or write a .safetensors where PyTorch is installed, with this line of Python: \
import torch, safetensors.torch; s = torch.load("{name}", map_location="cpu", weights_only=True); \
safetensors.torch.save_file({{k: v.clone() for k, v in s.get("model_state_dict", \
s.get("model", s)).items()}}, "{stem}.safetensors")"""

_TENSORFLOW = """{path}: weights of TensorFlow, which only TensorFlow reads; where it is \
installed, this line of Python writes them for 'mlx-attn import {name}': \
import numpy, tensorflow as tf; v = [n for n, _ in tf.train.list_variables("{path}")]; \
numpy.savez("{name}", **{{n: tf.train.load_variable("{path}", n) for n in v}})"""

_SAVE = "save with torch.save(model.state_dict(), path)"


def _of_torch(path: Path) -> tuple[Arrays, Object]:
    """Read a file of `torch.save` by PyTorch, restricted to weights.

    Expanded tensors, whose numbers share one place, must not take more memory than the file.
    """
    torch = optional("torch", _WITHOUT_TORCH.format(path=path, name=path.name, stem=path.stem))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever PyTorch raises, in many lines
        raise RunError(
            f"{path}: damaged, or it holds more than weights, which only running its code could "
            f"read ({type(error).__name__}): {_SAVE}"
        ) from error
    state = content
    for key in ("model_state_dict", "state_dict", "model"):  # beside an optimizer's
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    items = state.items() if isinstance(state, dict) else ()
    tensors = {str(name): part for name, part in items if isinstance(part, torch.Tensor)}
    if not tensors or len(tensors) < len(items):
        raise RunError(f"{path}: no state dict: {_SAVE}")
    claimed = sum(part.numel() * part.element_size() for part in tensors.values())
    if claimed > 2 * path.stat().st_size:  # a tied head has its numbers once in the file
        raise RunError(f"{path}: its tensors claim {claimed:,} bytes, far more than the file has")
    # Whole numbers stay so: of a mask, or of weights that are quantized, which are refused.
    plain = {k: t.detach().float() if t.is_floating_point() else t for k, t in tensors.items()}
    try:
        arrays = {name: mx.array(tensor.numpy()) for name, tensor in plain.items()}
    except (TypeError, RuntimeError) as error:
        raise RunError(f"{path}: a tensor is quantized or sparse, which is not read") from error
    arguments = content.get("model_args")  # of nanoGPT
    n_heads = arguments.get("n_head") if isinstance(arguments, dict) else 0
    return arrays, {"n_heads": n_heads if isinstance(n_heads, int) else 0}
