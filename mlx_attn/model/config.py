"""The configuration of a GPT: the book's keys, and keys that change one part of it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from mlx_attn.attention.catalog import MAPS, VARIANTS, Variant, find_variant
from mlx_attn.attention.config import AttentionConfig, AttentionSettings
from mlx_attn.errors import ConfigError, find_row, plural
from mlx_attn.keys import check_settings, keys_of, setting, validate
from mlx_attn.records import package_table

BLOCKS: dict[str, dict[str, Any]] = {
    "book": {"norm": "layernorm", "activation": "gelu", "bias": True},
    "modern": {"norm": "rmsnorm", "activation": "relu2", "bias": False},
}
"""Two blocks by name: the book's, and one in today's style."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig(AttentionConfig):
    """The attention of one layer of a GPT."""

    residual_gain: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig(AttentionSettings):
    """A GPT's sizes and choices. Every key's meaning is its `help`, which the command line shows.

    Keys with the value 0 are derived and stored: `AttentionSettings` and hidden_dim.
    """

    # Token ids are uint16. Sizes beyond any machine are refused before anything is allocated.
    vocab_size: int = setting(256, "tokens in the vocabulary", low=1, high=2**16)
    context_length: int = setting(128, "longest sequence, in tokens", low=2, high=2**24)
    emb_dim: int = setting(128, "width of the residual stream", low=1, high=2**24)
    n_heads: int = setting(4, "attention heads", low=1, high=2**16)
    n_layers: int = setting(4, "transformer blocks", low=1, high=2**12)
    hidden_dim: int = setting(0, "width of the feed-forward layer (0: 4 emb_dim)", high=2**24)
    global_every: int = setting(0, "with a window, every n-th layer sees all (0: none does)")
    kv_sharing: int = setting(
        0, "layers that share one layer's keys and values (0: none does)", high=2**12
    )
    pattern: str = setting("", "variants of the layers, in turn: deltanet,deltanet,standard")
    norm: str = setting("layernorm", "normalisation", words=("layernorm", "rmsnorm"))
    activation: str = setting(
        "gelu", "feed-forward activation", words=("gelu", "gelu_exact", "relu2")
    )
    bias: bool = setting(True, "biases in the output map, the feed-forward layer and the norms")
    tied_head: bool = setting(False, "read logits with the token embedding's matrix")
    start: str = setting("gpt2", "initialisation", words=("book", "gpt2", "zero"))

    def __post_init__(self):
        check_settings(self)
        # The class is frozen: derived sizes are filled in here, before anything reads them.
        object.__setattr__(self, "hidden_dim", self.hidden_dim or 4 * self.emb_dim)
        # A layer checks its sizes and choices here, so that a wrong one fails before any weight
        # exists.
        attention = self._attention({})
        for name in ("head_dim", "value_dim", "n_kv_heads", "latent_dim", "scale"):
            object.__setattr__(self, name, getattr(attention, name))
        # Stored with its variants' names, however they were written.
        names = ",".join(row.name for row in variants_of(self.pattern))
        object.__setattr__(self, "pattern", names)
        if self.pattern and (reason := _why_no_pattern(self)):
            raise ConfigError(f"pattern={self.pattern}: {reason}")
        if self.kv_sharing and (reason := _why_no_sharing(self)):
            raise ConfigError(f"kv_sharing={self.kv_sharing}: {reason}")
        self.kinds()  # a later layer may refuse what the first one does not

    def attention(self, layer: int = 0) -> AttentionConfig:
        """Return the configuration of an attention layer.

        Layers differ in their windows and in whether they have keys and values of their own, and
        with a pattern in all that its variants set.
        """
        names = self.pattern.split(",") if self.pattern else []
        # The pattern repeats until all layers have a row.
        row = VARIANTS[names[layer % len(names)]].settings if names else {}
        of_model = ("global_every", "kv_sharing")
        changes = {key: value for key, value in row.items() if key not in of_model}
        if self.kv_sharing > 1:
            changes["cross_layer"] = "reader" if layer % self.kv_sharing else "source"
        # Counted from 1: with global_every=3 the layers 2, 5, 8, ... (from 0) see all.
        sees_all = self.global_every > 0 and (layer + 1) % self.global_every == 0
        return self._attention({"window": 0 if sees_all else self.window, **changes})

    def kinds(self) -> list[AttentionConfig]:
        """Return the configuration of each layer from the first one until they repeat."""
        every = (max(self.global_every, 1), max(self.kv_sharing, 1))
        # Windows, sharing and the pattern all repeat after as many layers.
        period = math.lcm(*every, len(self.pattern.split(",")))
        return [self.attention(layer) for layer in range(min(period, self.n_layers))]

    def _attention(self, changes: dict[str, Any]) -> AttentionConfig:
        # The attention settings of the model, but for what this layer's variant sets.
        keys = {key.name: getattr(self, key.name) for key in fields(AttentionSettings)}
        return LayerConfig(
            **(keys | changes),
            d_in=self.emb_dim,
            d_out=self.emb_dim,
            context_length=self.context_length,
            out_bias=self.bias,
        )

    @property
    def sizes(self) -> str:
        """The sizes in words: 2 layers, 4 heads of 16, width 64, context 128."""
        heads = f"{plural(self.n_heads, 'head')} of {self.head_dim}"
        if self.n_kv_heads != self.n_heads:
            heads += f" ({self.n_kv_heads} for keys and values)"
        layers = plural(self.n_layers, "layer")
        return f"{layers}, {heads}, width {self.emb_dim}, context {self.context_length}"

    def as_dict(self) -> dict[str, Any]:
        """Return all keys with their values, for a file."""
        return asdict(self)


def variants_of(pattern: str) -> list[Variant]:
    """Return the variants of a pattern; none if it is empty.

    Raises:
        ConfigError: A name is missing or unknown.
    """
    names = [name.strip() for name in pattern.split(",")] if pattern else []
    if not all(names):
        raise ConfigError(
            f"pattern='{pattern}' has an empty place: write variants with commas between them, "
            "such as deltanet,deltanet,standard"
        )
    return [find_variant(name) for name in names]


def _why_no_sharing(config: GPTConfig) -> str:
    """Return why layers cannot read each other's keys and values, and the way out; empty if not."""
    if config.kv_sharing > config.n_layers:
        return f"there are only n_layers={config.n_layers}: use more layers, or a smaller number"
    for name in ("pattern", "global_every"):
        if value := getattr(config, name):
            return (
                "the layers that share need one form and one window, and "
                f"{name}={value} makes them differ: leave one of the two out"
            )
    layer = config.attention()
    hooks = (*layer.choices("logits"), *layer.choices("mixing"))
    others = [f"{hook.map}={hook.name}" for hook in hooks if hook.remembers]
    standard = {"score": MAPS["score"], "value": MAPS["value"], "short_conv": "none"}
    differs = {name: getattr(layer, name) != word for name, word in standard.items()}
    differs["output"] = layer.choice("output").contains_value is not None
    others += [f"{name}={getattr(layer, name)}" for name, is_other in differs.items() if is_other]
    if not others:
        return ""
    return (
        "layers share keys and values as score=separate and value=linear make them, and "
        f"{' and '.join(others)} computes or caches others: leave one of the two out"
    )


def _why_no_pattern(config: GPTConfig) -> str:
    """Return why these variants cannot be layers of one model, and the way out; empty if not."""
    rows = variants_of(config.pattern)
    if len(rows) > config.n_layers:
        return f"{len(rows)} variants for n_layers={config.n_layers}: use more layers"
    for name, word in MAPS.items():
        if (chosen := getattr(config, name)) != word:
            return f"each layer's variant sets its {name}: leave {name}={chosen} out"
    for row in rows:
        if row.global_every or row.kv_sharing:
            instead = "sliding-window,standard" if row.global_every else "--variant " + row.name
            return f"{row.name} is a pattern itself: write {instead} instead"
        if row.position == "learned" != config.position:
            return f"{row.name} needs learned positions, which all layers read: --position learned"
    maps = {row.name: layer.n_maps for row, layer in zip(rows, config.kinds(), strict=False)}
    if len({*maps.values()}) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in maps.items())
        return f"all layers need as many attention maps, and they have: {listed}"
    return ""


def config_from(settings: Mapping[str, Any]) -> GPTConfig:
    """Return a configuration from a mapping, such as a file's."""
    return GPTConfig(**validate(settings, keys_of(GPTConfig)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings that belong together."""

    model: Mapping[str, Any]  # keys of `GPTConfig`
    training: Mapping[str, Any]  # of `TrainConfig`
    text: Mapping[str, Any]  # of `TextConfig`
    vocab_size: int  # tokens that its tokenizer makes of its text


PRESETS = {name: Preset(**row) for name, row in package_table("mlx_attn.model", "presets").items()}


def find_preset(name: str) -> Preset:
    """Return the preset with this name."""
    return find_row(PRESETS, name, "preset")
