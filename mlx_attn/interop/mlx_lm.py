"""Run any trained model in mlx-lm, through the `model_file` of an exported folder.

mlx-lm imports the folder's model.py, which takes `Model` and `ModelArgs` from here: it computes
with the code that trained the model, so no form of attention is written a second time. Nothing of
mlx-lm is imported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

import mlx_attn
from mlx_attn.about import __version__
from mlx_attn.attention.cache import KVCache
from mlx_attn.errors import RunError
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.plugins import used_plugins
from mlx_attn.records import read_bytes
from mlx_attn.training.config import variant_name

MODEL_FILE = "model.py"
MODEL_TYPE = "mlx_attn"


@dataclass(frozen=True, slots=True)
class ModelArgs:
    """The part of a folder's config.json that makes the model."""

    config: GPTConfig
    model_type: str = MODEL_TYPE

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any]) -> "ModelArgs":
        """Return the arguments from config.json.

        Raises:
            ConfigError: The settings name a form of attention that is not registered here.
        """
        return cls(config_from(keys[MODEL_TYPE]))


class PromptCache:
    """What one layer keeps, with the methods that mlx-lm calls.

    It has no `merge`, so mlx-lm's server answers requests one after the other and does not pad
    prompts of different lengths into one batch.
    """

    def __init__(self, held: KVCache):
        self.held = held

    @property
    def offset(self) -> int:
        """Return the number of tokens read."""
        assert isinstance(self.held.offset, int)
        return self.held.offset

    @property
    def state(self) -> list[mx.array]:
        """Return all arrays, which mlx-lm evaluates after each part of a prompt."""
        return self.held.arrays

    @property
    def nbytes(self) -> int:
        """Return the size of all arrays."""
        return sum(array.nbytes for array in self.state)

    def size(self) -> int:
        """Return the number of tokens read."""
        return self.offset

    def empty(self) -> bool:
        """Return True before the first token."""
        return self.offset == 0

    def is_trimmable(self) -> bool:
        """Return True if the last tokens can be taken back: each still has a slot of its own.

        A recurrent state cannot go back, nor can a window that has overwritten older tokens.
        """
        return not self.held.rows and (not self.held.buffers or self.offset <= self.held.slots)

    def trim(self, n: int) -> int:
        """Take back the last tokens, at most n; return how many."""
        n = min(n, self.offset)
        self.held.offset -= n
        return n


class Model(GPT):
    """A trained model with the interface of mlx-lm's models."""

    def __init__(self, args: ModelArgs):
        super().__init__(args.config, seed=None)
        self.args, self.model_type = args, args.model_type

    @property
    def layers(self) -> list[Any]:
        """Return the blocks."""
        return self.trf_blocks

    def make_cache(self) -> list[PromptCache]:
        """Return an empty prompt cache, as long as the context."""
        return [PromptCache(cache) for cache in self.new_caches()]

    def __call__(self, inputs: mx.array, cache: Sequence[Any] | None = None) -> mx.array:
        """Return the logits of the next token after each of `inputs` [B, T].

        Without learned positions, a text may become longer than the context: the cache grows.

        Raises:
            ConfigError: The text is longer than the learned positions.
        """
        caches = [part.held for part in cache] if cache else None
        for part in cache or () if self.config.position != "learned" else ():
            if (needed := part.offset + inputs.shape[1]) > part.held.length:
                part.held.reserve(2 * needed)
        return super().__call__(inputs, caches)


# What an exported folder holds for it.


def folder_config(config: GPTConfig) -> dict[str, Any]:
    """Return the keys of config.json."""
    return {
        "model_type": MODEL_TYPE,
        "model_file": MODEL_FILE,
        "architectures": ["Model"],
        "vocab_size": config.vocab_size,
        MODEL_TYPE: config.as_dict(),
    }


def folder_code(config: GPTConfig) -> dict[str, bytes]:
    """Return model.py and the plugins that it loads, by file name.

    Raises:
        RunError: A plugin's file cannot be read, has changed since it was loaded, or has the name
            of another file of the folder.
    """
    plugins: dict[str, bytes] = {}
    for record in used_plugins(config.as_dict()):
        path = Path(record["path"])
        if path.name in (MODEL_FILE, *plugins):
            raise RunError(f"{path}: the folder has another file of this name: rename the plugin")
        plugins[path.name] = read_bytes(path)
    name = variant_name(config.as_dict())
    code = _MODEL_PY.format(variant=name, version=__version__, plugins=[*plugins])
    return {MODEL_FILE: code.encode(), **plugins}


def install_line() -> str:
    """Return the command that installs this package beside mlx-lm: from the clone that runs."""
    clone = Path(mlx_attn.__file__).parents[1]
    return f"pip install {clone if (clone / 'pyproject.toml').is_file() else 'mlx-attn'}"


_MODEL_PY = '''"""A model for mlx-lm with the attention `{variant}`, by mlx_attn {version}.

The code that computes it is mlx_attn's, which has to be installed beside mlx-lm. Files that define
a form of attention lie in this folder: they are run, so read them before you trust the folder.
"""

from pathlib import Path

try:
    from mlx_attn.interop.mlx_lm import Model, ModelArgs  # noqa: F401
    from mlx_attn.plugins import load_plugins
except ImportError as error:
    raise ImportError("this model needs mlx_attn: install it beside mlx-lm") from error

load_plugins([Path(__file__).with_name(name) for name in {plugins}])
'''
