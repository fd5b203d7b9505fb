"""Run any trained model in mlx-lm, through the `model_file` of an exported folder.

mlx-lm imports the folder's model.py, which takes `Model` and `ModelArgs` from here: it computes
with the code that trained the model, so no form of attention is written a second time. Nothing of
mlx-lm is imported.
"""

import hashlib
from collections.abc import Mapping, Sequence
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


def is_its_gpt2(config: GPTConfig) -> bool:
    """Return True if a GPT-2 of these sizes is one that mlx-lm reads without a model file."""
    return config.tied_head and config.hidden_dim == 4 * config.emb_dim


class ModelArgs:
    """Reads what makes the model in a folder's config.json."""

    @staticmethod
    def from_dict(keys: Mapping[str, Any]) -> GPTConfig:
        """Return the model's configuration.

        Raises:
            ConfigError: The settings name a form of attention that is not registered here.
        """
        return config_from(keys[MODEL_TYPE])


class PromptCache:
    """What one layer keeps of a text, with the methods that mlx-lm calls.

    Its server and `batch_generate` read several texts at once. Each keeps its own cache, and the
    model reads one after the other: so texts of different lengths are exact in every form of
    attention, without padding.
    """

    def __init__(self, *texts: KVCache):
        self.texts = [*texts]
        self.lengths: list[int] | None = None  # tokens to come that are not padding, if told

    @property
    def offset(self) -> int:
        """Return the number of tokens read of the only text."""
        (text,) = self.texts
        assert isinstance(text.offset, int)
        return text.offset

    @property
    def state(self) -> list[mx.array]:
        """Return all arrays, which mlx-lm evaluates after each part of a prompt."""
        return [array for text in self.texts for array in text.arrays]

    @property
    def nbytes(self) -> int:
        """Return the size of all arrays."""
        return sum(array.nbytes for array in self.state)

    def is_trimmable(self) -> bool:
        """Return True if the last tokens can be taken back: each still has a slot of its own.

        A recurrent state cannot go back, nor can a window that has overwritten older tokens.
        """
        return all(
            not text.rows and (not text.buffers or text.offset <= text.slots) for text in self.texts
        )

    def trim(self, n: int) -> int:
        """Take back the last tokens, at most n; return how many."""
        text, n = self.texts[0], min(n, self.offset)
        text.offset -= n
        is_held = mx.arange(text.slots)[:, None] < text.offset
        text.buffers = [mx.where(is_held, buffer, 0) for buffer in text.buffers]  # as never read
        return n

    @staticmethod
    def merge(parts: "Sequence[PromptCache]") -> "PromptCache":
        """Return the cache of several texts at once."""
        return PromptCache(*(text for part in parts for text in part.texts))

    def extend(self, other: "PromptCache") -> None:
        """Add the texts of another batch."""
        self.texts += other.texts

    def filter(self, keep: Sequence[int]) -> None:
        """Keep these texts, by number."""
        self.texts = [self.texts[number] for number in keep]

    def extract(self, number: int) -> "PromptCache":
        """Return a copy of the cache of one text, to be kept for a later prompt."""
        text = self.texts[number]
        return PromptCache(text.new(text.offset, text.arrays))

    def prepare(self, lengths: Sequence[int], **_: Any) -> None:
        """Learn how many of the tokens to come are not padding."""
        self.lengths = [*lengths]

    def finalize(self) -> None:
        """Learn that the padded tokens have been read."""
        self.lengths = None

    def count(self, T: int) -> list[int]:
        """Return how many of the next T tokens of each text are not padding, and count them."""
        if self.lengths is None:
            return [T] * len(self.texts)
        counts = [min(T, length) for length in self.lengths]
        self.lengths = [length - n for length, n in zip(self.lengths, counts, strict=True)]
        return counts


class Model(GPT):
    """A trained model with the interface of mlx-lm's models."""

    def __init__(self, args: GPTConfig):
        super().__init__(args, seed=None)
        self.args, self.model_type = args, MODEL_TYPE

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
        if not cache:
            return super().__call__(inputs)
        if len(cache[0].texts) > 1 or cache[0].lengths:
            return self._read_each(inputs, cache)
        for part in cache if self.config.position != "learned" else ():
            if (needed := part.offset + inputs.shape[1]) > part.texts[0].length:
                part.texts[0].reserve(2 * needed)
        return super().__call__(inputs, [part.texts[0] for part in cache])

    def _read_each(self, inputs: mx.array, cache: Sequence[PromptCache]) -> mx.array:
        T, V, logits = inputs.shape[1], self.config.vocab_size, list[mx.array]()
        counts = [part.count(T) for part in cache]  # equal in all layers
        for number, n in enumerate(counts[0]):
            texts = [PromptCache(part.texts[number]) for part in cache]
            y = self(inputs[number : number + 1, :n], texts) if n else mx.zeros((1, 0, V))
            logits.append(mx.pad(y, [(0, 0), (0, T - n), (0, 0)]))  # padding is not read
        return mx.concatenate(logits)


# The files of an exported folder.


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
        RunError: A plugin's file cannot be read, has changed since it was loaded, opens others, or
            has the name of another file of the folder.
    """
    plugins: dict[str, bytes] = {}
    for record in used_plugins(config.as_dict()):
        path = Path(record["path"])
        if path.name in (MODEL_FILE, *plugins):
            raise RunError(f"{path}: the folder has another file of this name: rename the plugin")
        plugins[path.name] = read_bytes(path)
        if hashlib.sha256(plugins[path.name]).hexdigest() != record["sha256"]:
            raise RunError(f"plugin {path} has changed since it was loaded: load it again")
        if record["files"]:
            raise RunError(
                f"{path}: it opens {', '.join(record['files'])}, and an exported folder holds only "
                "the plugin itself: write all into one file"
            )
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
