"""Write the code of an exported folder whose model no stock architecture can hold.

The code joins `mlx_attn.interop.portable` and the source of the model's choices, also a plugin's:
once for MLX (`model.py`, which mlx-lm runs) and once for PyTorch (`modeling_mlx_attn.py`, which
transformers runs). Both run it only if their user trusts it.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.about import __version__
from mlx_attn.attention.config import Choice
from mlx_attn.interop import portable
from mlx_attn.interop.choice_source import TORCH_OPERATIONS, NotPortable, Sources
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.config import variant_name

MLX_FILE, TORCH_FILE = "model.py", "modeling_mlx_attn.py"
_CONFIG_FILE = "configuration_mlx_attn.py"


def shipped_files(model: GPT) -> tuple[dict[str, str], dict[str, Any], str]:
    """Return what an exported folder holds beside its weights.

    Args:
        model: A model whose matrices are `written_out`, as for all functions here.

    Returns:
        The texts of the files by name; the keys of config.json; and why there is none for PyTorch,
        or "".

    Raises:
        NotPortable: A choice cannot be exported; the message gives the reason.
    """
    texts = {MLX_FILE: shipped_code(model, "mlx")}
    config = {
        **portable_config(model),
        "model_type": "mlx_attn",
        "architectures": ["Model"],
        "model_file": MLX_FILE,
        "tie_word_embeddings": False,
    }
    obstacle = _code_of(model)[0].torch_obstacle()
    if not obstacle:
        texts |= {TORCH_FILE: shipped_code(model, "torch"), _CONFIG_FILE: _CONFIGURATION}
        config["auto_map"] = {
            "AutoConfig": f"{Path(_CONFIG_FILE).stem}.Config",
            "AutoModelForCausalLM": f"{Path(TORCH_FILE).stem}.Model",
        }
    return texts, config, obstacle


def shipped_code(model: GPT, library: str) -> str:
    """Return the code that runs a model with "mlx" or "torch"."""
    sources, table = _code_of(model)
    name = variant_name(model.config.as_dict())
    heading, ending = _MLX_IMPORTS + _MLX_PART, _MLX_ENDING
    if library == "torch":
        heading, ending = _TORCH_HEADING + _torch_operations(sources.operations), _TORCH_ENDING
    functions = "\n\n\n".join([_SHARED_PART.strip(), *sources.texts.values()])
    about = _ABOUT.format(variant=name, version=__version__)
    return f"{about}{heading}\n\n{functions}\n\n\n{table}\n{_KINDS}{ending}"


def portable_config(model: GPT) -> dict[str, Any]:
    """Return the keys of config.json that the exported code reads: ours, and derived ones."""
    config, attention = model.config, model.trf_blocks[0].att
    weights = [*(name for choice in attention.maps.all for name in choice.weights), "log_slopes"]
    kinds = {name: _kind(name, attention[name]) for name in weights if name in attention}
    return {
        **config.as_dict(),
        "cached_layers": config.n_layers + config.token_shift,
        "queries_per_head": attention.maps.score.queries_per_head,
        "slopes": list(config.attention().slopes()),
        "windows": [config.attention(layer).window for layer in range(config.n_layers)],
        "attention_keys": asdict(attention.config),
        "maps": dict(sorted(kinds.items())),
    }


def _kind(name: str, part: Any) -> list[Any]:
    """Return a weight's kind and sizes, and for a layer if it has a bias."""
    match part:
        case nn.Embedding():
            return ["embedding", *part.weight.shape]
        case nn.Linear():
            return ["linear", *part.weight.shape[::-1], "bias" in part]
        case nn.RMSNorm():
            return ["rmsnorm", *part.weight.shape, part.eps]
        case nn.LayerNorm():
            return ["layernorm", *part.weight.shape, part.eps, "bias" in part]
        case mx.array():
            return ["array", *part.shape]
    kind = type(part).__name__
    raise NotPortable(f"its weight {name} is a {kind}; arrays, Linear, Embedding and norms ship")


def _code_of(model: GPT) -> tuple[Sources, str]:
    """Return the source of a model's choices, and the table of choices that `portable` reads."""
    if reason := _obstacle(model.config):
        raise NotPortable(reason)
    maps, sources = model.trf_blocks[0].att.maps, Sources(_RESERVED)

    def row(choice: Choice) -> str:
        apply = sources.add(choice, choice.apply)
        remembers = choice.remembers and sources.add(choice, choice.remembers)
        return (
            f"SimpleNamespace(apply={apply}, remembers={remembers}, carries={choice.carries}, "
            f"reads_keys={choice.reads_keys})"
        )

    rows = {key: row(getattr(maps, key)) for key in ("score", "value", "output", "mixing")}
    rows["logits"] = f"[{', '.join(map(row, maps.logits))}]"
    rows["keys_only"] = str(maps.caches_keys_only)
    listed = "\n".join(f"    {key}={text}," for key, text in rows.items())
    return sources, f"MAPS = SimpleNamespace(\n{listed}\n)\n"


def _obstacle(config: GPTConfig) -> str:
    """Return why the code that ships cannot compute a model, whatever its choices; or ""."""
    if config.pattern:
        return (
            f"its layers have several forms (pattern={config.pattern}), and the code that ships "
            "computes one: train one variant in all layers"
        )
    if config.kv_sharing > 1:
        return (
            f"its layers share keys and values (kv_sharing={config.kv_sharing}), and the code that "
            "ships caches those of every layer: train without kv_sharing"
        )
    if config.short_conv != "none":
        return (
            "its convolutions read earlier tokens, which the code that ships does not cache: train "
            "without short_conv"
        )
    return ""


def _torch_operations(used: Iterable[str]) -> str:
    """Return code that defines the MLX operations of the choices by PyTorch's."""
    lines = ["", "", "# MLX's operations that the functions below use, by PyTorch's."]
    for module in ("mx", "nn"):
        names = sorted(name for name in used if name.startswith(f"{module}."))
        rows = [f"    {name.partition('.')[2]}={TORCH_OPERATIONS[name]}," for name in names]
        if rows and module == "nn":
            rows = ["    **vars(nn),", *rows]
        if rows:
            lines += [f"{module} = SimpleNamespace(", *rows, ")"]
    return "\n".join(lines) + "\n" if len(lines) > 3 else ""


_KINDS = """KINDS = {
    "linear": nn.Linear,
    "embedding": nn.Embedding,
    "array": parameter,
    "rmsnorm": lambda width, eps: nn.RMSNorm(width, eps=eps),
    "layernorm": lambda width, eps, bias: nn.LayerNorm(width, eps=eps, bias=bias),
}
"""

_ABOUT = '''"""A language model whose attention is `{variant}`, written by mlx_attn {version}.

B batch, T time, C channels, H heads, D head_dim. The sizes and choices are in config.json.
"""

'''

_MLX_IMPORTS = """from __future__ import annotations

import math  # noqa: F401
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn

xp = mx
"""
_, _MLX_PART, _SHARED_PART = re.split(
    r"# For MLX.*\.\n", Path(portable.__file__).read_text(encoding="utf-8")
)

_MLX_ENDING = '''

class ModelArgs(SimpleNamespace):
    @classmethod
    def from_dict(cls, config):
        return cls(**config)


class Model(nn.Module):
    """The model for mlx-lm: one sequence at a time."""

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
            """A cache that tells a server not to pad sequences of different lengths together."""

            merge = property()

        return [OneSequence() for _ in range(self.args.cached_layers)]
'''

_TORCH_HEADING = '''from __future__ import annotations

import math  # noqa: F401
from types import SimpleNamespace

import torch
import torch as xp
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_mlx_attn import Config

ModuleList = nn.ModuleList


class Module(nn.Module):
    """A layer with parts by name: `a.W_key` or `a["W_key"]`."""

    def __getitem__(self, name):
        return getattr(self, name)

    def __contains__(self, name):
        return hasattr(self, name)


def parameter(*shape):
    return nn.Parameter(torch.zeros(shape))


def cast(y, like):
    return y.to(like.dtype)


def read_logits(x, embedding):
    return nn.functional.linear(x, embedding.weight)


def remember(cache, layer, packed):
    """Add rows to the cache of a layer; return the rows of all tokens."""
    return cache.update(packed, packed[..., :0], layer)[0]
'''

_TORCH_ENDING = '''

class Model(PreTrainedModel, GenerationMixin):
    """The model for transformers: sequences of one length, without padding."""

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
        self,
        input_ids,
        past_key_values=None,
        attention_mask=None,
        use_cache=None,
        labels=None,
        cache=None,  # what past_key_values is called from transformers 5.24 on
        **_,
    ):
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("this model reads sequences of one length: leave padding out")
        cache = past_key_values if cache is None else cache
        if cache is None and use_cache is not False:
            cache = DynamicCache()
        offset = cache.get_seq_length() if cache is not None else 0
        with torch.device(input_ids.device):
            logits = compute_logits(self, self.config, input_ids, cache, offset)
        loss = None
        if labels is not None:
            rows, right = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            loss = nn.functional.cross_entropy(rows, right)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)
'''

_CONFIGURATION = '''"""The configuration of modeling_mlx_attn.py, for readers without PyTorch."""

from transformers import PreTrainedConfig


class Config(PreTrainedConfig):
    model_type = "mlx_attn"
    attribute_map = {
        "hidden_size": "emb_dim",
        "num_hidden_layers": "cached_layers",  # generate() makes a cache for each
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "context_length",
    }
'''

_RESERVED = set(re.findall(r"^(?:def|class) (\w+)", _SHARED_PART + _TORCH_HEADING, re.MULTILINE))
"""Names that a choice's function must not have."""
