"""The file of code that an exported folder carries where no stock architecture holds the model.

It is made of the functions of `mlx_attn.interop.portable` that the model needs, once under a
heading for MLX (`model.py`, which mlx-lm runs) and once under one for PyTorch
(`modeling_mlx_attn.py`, which transformers runs), both only where their user trusts it.
"""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.about import __version__
from mlx_attn.arrays import named_arrays
from mlx_attn.attention.analysis import ov_circuit
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.layer import ShrunkLinear
from mlx_attn.errors import ConfigError
from mlx_attn.interop import portable
from mlx_attn.interop.standard import instead_of_stock
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.config import variant_name

MLX_FILE, TORCH_FILE = "model.py", "modeling_mlx_attn.py"
CONFIG_FILE = "configuration_mlx_attn.py"

_SCORES = {
    "separate": ("linear", "linear", "kv"),
    "merged": ("merged", "whole", "input"),
    "no_query": ("slice", "linear", "kv"),
    "no_key": ("linear", "slice", "kv"),
    "nonlinear_query": ("nonlinear", "linear", "kv"),
    "shared": ("linear", "shared", "kv"),
    "collaborative": ("mixed", "wide", "kv"),
    "shrunk": ("linear", "linear", "kv"),
    "latent": ("linear", "latent", "latent"),
    "paired": ("linear", "linear", "kv"),
    "off": ("off", "off", "kv"),
}
"""The functions of query and key, and what decoding keeps, by score map."""

_SAME = {"shrunk": "linear", "hadamard": "linear", "orthogonal": "linear"}
"""Choices whose matrix is written out."""


def chosen_functions(config: GPTConfig) -> dict[str, Any]:
    """The names of the functions of a model's choices, by what they compute.

    Raises:
        ConfigError: A choice has none, as one of a user's plugin.
    """
    query, key, keeps = _SCORES.get(config.score, ("?", "?", "?"))
    value = "whole" if config.output == "merged" else _SAME.get(config.value, config.value)
    names: dict[str, Any] = {
        "query": f"query_{query}",
        "key": f"key_{key}",
        "keep": f"keep_{keeps}",
        "read": "read_kv" if keeps == "kv" else "read_input",
        "value": f"value_{value}",
        "output": f"output_{_SAME.get(config.output, config.output)}",
        "logits": [f"logits_{word}" for word in config.logits.split("+") if word != "none"],
        "mixing": f"mixing_{config.mixing}",
    }
    if not all(hasattr(portable, name) for name in _flat(names)):
        raise ConfigError(f"there is no code to ship for this model: {instead_of_stock(config)}")
    return names


def _flat(names: dict[str, Any]) -> list[str]:
    return [n for name in names.values() for n in (name if isinstance(name, list) else [name])]


def portable_config(model: GPT) -> dict[str, Any]:
    """What the shipped code reads of config.json: our keys, and what is derived from them."""
    config, attention = model.config, model.trf_blocks[0].att
    per_head = attention.maps.score.queries_per_head
    layers = range(config.n_layers)
    return {
        **config.as_dict(),
        "cached_layers": config.n_layers + config.token_shift,
        "queries_per_head": per_head,
        "slopes": list(config.attention().slopes()),
        "windows": [config.attention(layer).window for layer in layers],
        "maps": dict(sorted(_kinds(attention).items())),
    }


def _kind(part: Any) -> list[Any]:
    """A weight's kind and sizes; empty for what is no weight."""
    match part:
        case nn.Embedding():
            return ["embedding", *part.weight.shape]
        case nn.Linear():
            return ["linear", *part.weight.shape[::-1], "bias" in part]
        case ShrunkLinear():
            return ["linear", *part.dense_weight().shape[::-1], "bias" in part]
        case nn.RMSNorm():
            return ["rmsnorm", *part.weight.shape, part.eps]
        case nn.LayerNorm():
            return ["layernorm", *part.weight.shape, part.eps, "bias" in part]
        case mx.array():
            return ["array", *part.shape]
        case _:
            return []


def _kinds(attention: Attention) -> dict[str, list[Any]]:
    """Every weight of a layer as its kind, its sizes, and whether it has a bias."""
    kinds = {name: kind for name, part in attention.items() if (kind := _kind(part))}
    if "out_scale" in kinds:  # a fixed matrix with a scale and a shift of each coordinate
        del kinds["out_scale"], kinds["out_shift"]
        kinds["out_proj"] = ["linear", attention.config.d_out, attention.config.d_out, True]
    return kinds


def portable_arrays(model: GPT) -> dict[str, mx.array]:
    """The weights under our names, matrices with a fixed part written out."""
    arrays = {k: v for k, v in named_arrays(model).items() if ".att." not in k}
    for i, block in enumerate(model.trf_blocks):
        own = named_arrays(block.att)
        for name, part in block.att.items():
            if isinstance(part, ShrunkLinear):
                own[f"{name}.weight"] = part.dense_weight()
                del own[f"{name}.places"]
        if "out_scale" in own:
            fixed = ov_circuit(block.att)
            own = {k: v for k, v in own.items() if not k.startswith(("out_", "fixed"))}
            own["out_proj.weight"] = mx.array(fixed.output, mx.float32)
            own["out_proj.bias"] = mx.array(fixed.constant, mx.float32)
        arrays |= {f"trf_blocks.{i}.att.{name}": array for name, array in own.items()}
    return arrays


def shipped_code(config: GPTConfig, library: str) -> str:
    """The text of the file.

    Args:
        config: The model's configuration.
        library: "mlx" or "torch".
    """
    chosen, heading = chosen_functions(config), _HEADINGS[library]
    roots = [*_flat(chosen), "parameter", "build", "compute_logits"]
    functions = "\n\n\n".join(_needed(roots, own=_defined(ast.parse(heading)).keys()))
    listed = "\n".join(f'    "{key}": {_code(name)},' for key, name in chosen.items())
    about = _ABOUT.format(variant=variant_name(config.as_dict()), version=__version__)
    tables = f"CHOSEN = {{\n{listed}\n}}\n\n{_KINDS}"
    return f"{about}{heading}\n\n{functions}\n\n\n{tables}{_ENDINGS[library]}"


_KINDS = """KINDS = {
    "linear": nn.Linear,
    "embedding": nn.Embedding,
    "array": parameter,
    "rmsnorm": lambda width, eps: nn.RMSNorm(width, eps=eps),
    "layernorm": lambda width, eps, bias: nn.LayerNorm(width, eps=eps, bias=bias),
}
"""


def _code(name: str | list[str]) -> str:
    return name if isinstance(name, str) else f"[{', '.join(name)}]"


def _needed(roots: Iterable[str], own: Iterable[str]) -> list[str]:
    """The source of functions and classes and of those they use, in the order of the module."""
    text = Path(portable.__file__).read_text(encoding="utf-8")
    defined, found, waiting = _defined(ast.parse(text)), set[str](), [*roots]
    while waiting:
        name = waiting.pop()
        if name in found or name not in defined or name in own:
            continue
        found.add(name)
        nodes = ast.walk(defined[name])
        waiting += [node.id for node in nodes if isinstance(node, ast.Name)]
    sources = (ast.get_source_segment(text, defined[name]) for name in defined if name in found)
    return [source for source in sources if source]


def _defined(tree: ast.Module) -> dict[str, ast.stmt]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


_ABOUT = '''"""A language model whose attention is `{variant}`, written by mlx_attn {version}.

B batch, T time, C channels, H heads, D head_dim. The sizes and choices are in config.json.
"""

'''

_MLX_HEADING = """from types import SimpleNamespace

import mlx.core as xp
import mlx.nn as nn

ModuleList = list
"""

_MLX_ENDING = '''

class ModelArgs(SimpleNamespace):
    @classmethod
    def from_dict(cls, config):
        return cls(**config)


class Model(nn.Module):
    """The model as mlx-lm runs it: one sequence at a time."""

    def __init__(self, args):
        super().__init__()
        self.args, self.model_type = args, args.model_type
        build(self, args)

    def __call__(self, inputs, cache=None):
        offset = cache[0].offset if cache else 0
        return compute_logits(self, self.args, inputs, cache or None, offset)

    @property
    def layers(self):
        return self.trf_blocks

    def make_cache(self):
        from mlx_lm.models.cache import KVCache

        class OneSequence(KVCache):
            """Says to a server that sequences of different lengths are not padded into one."""

            merge = property()

        return [OneSequence() for _ in range(self.args.cached_layers)]
'''

_TORCH_HEADING = '''from types import SimpleNamespace

import torch
import torch as xp
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_mlx_attn import Config

Module, ModuleList = nn.Module, nn.ModuleList


def parameter(*shape):
    return nn.Parameter(torch.zeros(shape))


def cast(y, like):
    return y.to(like.dtype)


def read_logits(x, embedding):
    return nn.functional.linear(x, embedding.weight)


def remember(cache, layer, packed):
    """Add rows to the cache of a layer; return those of all tokens."""
    return cache.update(packed, packed[..., :0], layer)[0]
'''

_TORCH_ENDING = '''

class Model(PreTrainedModel, GenerationMixin):
    """The model as transformers runs it: sequences of one length, without padding."""

    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        build(self, config)
        self.post_init()

    def _init_weights(self, module):
        pass

    def get_input_embeddings(self):
        return self.tok_emb

    def forward(
        self, input_ids, past_key_values=None, attention_mask=None, use_cache=None, labels=None, **_
    ):
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("this model reads sequences of one length: leave padding out")
        if past_key_values is None and use_cache is not False:
            past_key_values = DynamicCache()
        offset = past_key_values.get_seq_length() if past_key_values is not None else 0
        with torch.device(input_ids.device):
            logits = compute_logits(self, self.config, input_ids, past_key_values, offset)
        loss = None
        if labels is not None:
            rows, right = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            loss = nn.functional.cross_entropy(rows, right)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
'''

CONFIGURATION = '''"""The configuration of modeling_mlx_attn.py, for readers without PyTorch."""

from transformers import PreTrainedConfig


class Config(PreTrainedConfig):
    model_type = "mlx_attn"
    attribute_map = {
        "hidden_size": "emb_dim",
        "num_hidden_layers": "cached_layers",  # what generate() makes a cache for
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "context_length",
    }
'''
"""The text of `CONFIG_FILE`, the same for every model."""

_HEADINGS = {"mlx": _MLX_HEADING, "torch": _TORCH_HEADING}
_ENDINGS = {"mlx": _MLX_ENDING, "torch": _TORCH_ENDING}
