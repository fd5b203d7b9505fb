"""From layers of settings to one training: preset, file, environment, flags.

All settings share one flat namespace, so a file, a flag and an environment variable say the same
key. Later layers win; a key nobody knows is refused with the nearest name.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mlx_attn.attention.variants import VARIANTS, find_variant
from mlx_attn.errors import ConfigError, nearest
from mlx_attn.model.config import BLOCKS, GPTConfig, config_from
from mlx_attn.model.presets import find_preset
from mlx_attn.training.config import TrainConfig

DEFAULT_PRESET = "tiny"
_BUDGETS = ("steps", "epochs", "minutes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """What a model is trained on."""

    data: str = field(
        default="tales", metadata={"help": "tales, a corpus by name, a file, a folder, or -"}
    )
    tokenizer: str = field(default="bpe", metadata={"help": "char, byte, bpe, unigram or gpt2"})
    vocab_size: int = field(
        default=1024, metadata={"help": "most tokens that bpe and unigram may use"}
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one training, complete but for the vocabulary's final size."""

    preset: str
    model: Mapping[str, Any]
    training: TrainConfig
    text: TextConfig

    @property
    def variant(self) -> str:
        """The name of the attention's three choices."""
        return variant_name(self.model)

    def model_config(self, vocab_size: int) -> GPTConfig:
        """The model's configuration, once the tokenizer is known."""
        return config_from({**self.model, "vocab_size": vocab_size})

    def record(self, config: GPTConfig, **facts: Any) -> dict[str, Any]:
        """What config.json holds."""
        return {
            "preset": self.preset,
            "variant": self.variant,
            "model": config.as_dict(),
            "training": self.training.as_dict(),
            "text": asdict(self.text),
            **facts,
        }


def settings_from(record: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """The settings that a config.json holds, with some of the training's changed.

    Raises:
        ConfigError: A value cannot work.
    """
    model = {key: value for key, value in record["model"].items() if key != "vocab_size"}
    training = TrainConfig(**_join((record["training"], changes)))
    return Settings(record["preset"], model, training, TextConfig(**record["text"]))


def resolve(*layers: Mapping[str, Any]) -> Settings:
    """Join layers of flat settings, later ones winning, over the preset that they name.

    Besides the keys of `GPTConfig`, `TrainConfig` and `TextConfig` there are three that stand for
    several: preset, variant and block.

    Raises:
        ConfigError: A key or a value cannot work.
    """
    layers = tuple(_expanded(layer) for layer in layers)
    preset = str(_join(layers).pop("preset", DEFAULT_PRESET))
    chosen = find_preset(preset)
    merged = _join(({**chosen.text, **chosen.training, **chosen.model}, *layers))
    merged.pop("preset", None)
    of_text, of_training = _keys(TextConfig), _keys(TrainConfig)
    return Settings(
        preset,
        {k: v for k, v in merged.items() if k in _keys(GPTConfig) - of_text},
        TrainConfig(**{k: v for k, v in merged.items() if k in of_training}),
        TextConfig(**{k: v for k, v in merged.items() if k in of_text}),
    )


def variant_name(model: Mapping[str, Any]) -> str:
    """The row of the table with these maps, or the maps themselves where there is none."""
    defaults = {"score": "separate", "value": "linear", "output": "linear"}
    maps = {key: model.get(key, default) for key, default in defaults.items()}
    names = [name for name, variant in VARIANTS.items() if variant.maps == maps]
    return names[0] if names else "+".join(maps.values())


def known_keys() -> dict[str, type]:
    """Every setting's name and the configuration that it belongs to."""
    return {
        f.name: config for config in (GPTConfig, TrainConfig, TextConfig) for f in fields(config)
    }


def _expanded(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A layer with `variant` and `block` replaced by the keys they stand for."""
    known = [*known_keys(), "preset", "variant", "block"]
    for key in layer:
        if key not in known:
            raise ConfigError(f"unknown setting '{key}'{nearest(key, known)}")
    plain = dict(layer)
    short: dict[str, Any] = {}
    if "block" in plain:
        short |= _block(plain.pop("block"))
    if "variant" in plain:
        short |= find_variant(plain.pop("variant")).maps
    return {**short, **plain}


def _block(name: str) -> Mapping[str, Any]:
    if name not in BLOCKS:
        raise ConfigError(f"unknown block '{name}'{nearest(name, BLOCKS)}")
    return BLOCKS[name]


def _join(layers: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    """Join layers; one that sets a budget replaces the budgets of those below it."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if any(layer.get(budget) for budget in _BUDGETS):
            merged = {k: v for k, v in merged.items() if k not in _BUDGETS}
        merged |= layer
    return merged


def _keys(config: type) -> set[str]:
    return {f.name for f in fields(config)}
