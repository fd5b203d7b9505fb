"""From layers of settings to one training: preset, file, environment, flags.

All settings share one flat namespace, so a file, a flag and an environment variable say the same
key. Later layers win; a key nobody knows is refused with the nearest name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mlx_attn.attention.variants import VARIANTS, find_variant
from mlx_attn.errors import ConfigError, nearest
from mlx_attn.keys import keys_of, typed
from mlx_attn.model.config import BLOCKS, GPTConfig, config_from
from mlx_attn.model.presets import PRESETS, find_preset
from mlx_attn.text.tasks import TASKS
from mlx_attn.training.config import TrainConfig

DEFAULT_PRESET = "tiny"
_BUDGETS = ("steps", "epochs", "minutes")

RESUMABLE = frozenset(
    {*_BUDGETS, "eval_every", "save_every", "log_every", "track", "patience", "compile"}
    | {"data", "token_memory"}
)
"""What may change when a training goes on: how long, what it reports, and where its text lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """What a model is trained on."""

    data: str = field(
        default="tales",
        metadata={"help": "tales, a task or a corpus by name, a file, a folder, or -"},
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
    """The settings that a config.json holds, for going on with some of them changed.

    Args:
        record: The content of config.json.
        changes: Settings that are wanted now; what is not in `RESUMABLE` must be as it was.

    Raises:
        ConfigError: A value cannot work, or cannot change.
    """
    changes = expanded(changes)
    _check_resumable(record, changes)
    training, text = keys_of(TrainConfig), keys_of(TextConfig)
    try:
        model = typed(record["model"], keys_of(GPTConfig))
        recipe = _join((typed(record["training"], training), _only(changes, training)))
        where = typed(record["text"], text) | _only(changes, text)
    except ConfigError as error:
        raise ConfigError(f"config.json: {error}") from error
    model.pop("vocab_size", None)
    return Settings(
        str(record.get("preset", "")), model, TrainConfig(**recipe), TextConfig(**where)
    )


def layer_from(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a config.json holds, as a layer for `resolve`."""
    model = {key: value for key, value in record["model"].items() if key != "vocab_size"}
    preset = {"preset": record["preset"]} if record.get("preset") in PRESETS else {}
    return {**preset, **model, **record["training"], **record["text"]}


def resolve(*layers: Mapping[str, Any]) -> Settings:
    """Join layers of flat settings, later ones winning, over the preset that they name.

    Where the text is a probing task and no preset is named, the task's own settings take its place.

    Besides the keys of `GPTConfig`, `TrainConfig` and `TextConfig` there are three that stand for
    several: preset, variant and block.

    Raises:
        ConfigError: A key or a value cannot work.
    """
    layers = tuple(expanded(layer) for layer in layers)
    preset, lowest = _lowest(_join(layers))
    merged = _join((lowest, *layers))
    text = keys_of(TextConfig)
    model = {k: v for k, v in _only(merged, keys_of(GPTConfig)).items() if k not in text}
    return Settings(
        preset,
        model,
        TrainConfig(**_only(merged, keys_of(TrainConfig))),
        TextConfig(**_only(merged, text)),
    )


def _lowest(wanted: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the settings of what all layers lie upon."""
    task = TASKS.get(wanted.get("data", ""))
    if task and wanted.get("preset", task.name) == task.name:
        return task.name, expanded(task.settings)
    preset = str(wanted.get("preset", DEFAULT_PRESET))
    chosen = find_preset(preset)
    fit = task.fit if task else {}
    return preset, expanded({**chosen.text, **chosen.training, **chosen.model, **fit})


def expanded(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A checked layer with `variant` and `block` replaced by the keys they stand for.

    A key that the layer itself names wins over what these two say of it.

    Raises:
        ConfigError: A key is unknown, or a value is of another type or names nothing.
    """
    plain = typed(layer, keys_of(*_CONFIGS) | dict.fromkeys(_SEVERAL, str))
    short: dict[str, Any] = {}
    if "block" in plain:
        short |= _block(plain.pop("block"))
    if "variant" in plain:
        short |= find_variant(plain.pop("variant")).maps
    return {**short, **plain}


def variant_name(model: Mapping[str, Any]) -> str:
    """The row of the table with these maps, or the maps themselves where there is none."""
    defaults = {"score": "separate", "value": "linear", "output": "linear"}
    maps = {key: model.get(key, default) for key, default in defaults.items()}
    names = [name for name, variant in VARIANTS.items() if variant.maps == maps]
    return names[0] if names else "+".join(maps.values())


def known_keys() -> dict[str, type]:
    """Every setting's name and the configuration that it belongs to."""
    return {f.name: config for config in _CONFIGS for f in fields(config)}


def _check_resumable(record: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    recorded = {**record, **record["model"], **record["training"], **record["text"]}
    for key, value in changes.items():
        if key not in RESUMABLE and recorded.get(key) != value:
            raise ConfigError(
                f"{key}={value!r} cannot change when a training goes on: it is "
                f"{recorded.get(key)!r}; what can: {', '.join(sorted(RESUMABLE))}"
            )


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


def _only(settings: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    return {key: settings[key] for key in known if key in settings}


_CONFIGS = (GPTConfig, TrainConfig, TextConfig)
_SEVERAL = ("preset", "variant", "block")
