"""How a model is trained: every number, with its meaning as `help`."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from sys import float_info
from typing import Any

from mlx_attn.attention.config import MAPS, VARIANTS, Variant, find_variant
from mlx_attn.errors import ConfigError, find_row
from mlx_attn.keys import check_bounds, check_choices, keys_of, setting, validate
from mlx_attn.model.config import (
    BLOCKS,
    PRESETS,
    GPTConfig,
    config_from,
    find_preset,
    saved_settings,
)
from mlx_attn.plugins import check_plugins, used_plugins

CHOICES = {
    "optimizer": ("adamw", "muon"),
    "schedule": ("cosine", "trapezoid", "constant"),
    "windows": ("random", "epochs"),
    "decay": ("matrices", "all", "query-key"),
    "dtype": ("float32", "bfloat16"),
    "compile": ("auto", "on", "off"),
}
"""The settings that are one of a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A training recipe: steps, epochs and minutes bound it, and the first one reached ends it.

    Raises:
        ConfigError: A value cannot work; the message has the number.
    """

    steps: int = setting(0, "optimizer steps (0: no bound)")
    epochs: float = setting(0.0, "passes over the training text (0: no bound)")
    minutes: float = setting(0.0, "wall-clock budget in minutes (0: no bound)")
    batch_size: int = setting(12, "sequences per step")
    accumulate: int = setting(1, "micro-batches per step: batch_size sequences each")
    lr: float = setting(1e-3, "peak learning rate of AdamW")
    min_lr: float = setting(0.0, "learning rate at the end of the schedule")
    muon_lr: float = setting(0.02, "peak learning rate of Muon's matrices")
    muon_momentum: float = setting(0.95, "momentum of Muon, a moving average")
    merged_lr: float = setting(0.0, "learning rate of S under AdamW, times lr (0: 1 / n_heads)")
    base_width: int = setting(
        0, "emb_dim that lr was found at: AdamW's rate of other widths follows (0: it is lr)"
    )
    optimizer: str = setting("adamw", "adamw, or muon for the blocks' matrices")
    schedule: str = setting("cosine", "cosine, trapezoid or constant, after the warm-up")
    warmup: int = setting(100, "steps of linear warm-up")
    cooldown: float = setting(0.6, "share of the training that a trapezoid spends decaying")
    weight_decay: float = setting(0.0, "decoupled weight decay of AdamW")
    decay: str = setting("matrices", "what decays: matrices, all, or query-key alone")
    beta1: float = setting(0.9, "AdamW's first decay rate")
    beta2: float = setting(0.99, "AdamW's second decay rate")
    clip: float = setting(1.0, "largest global norm of the gradient (0: no clipping)")
    windows: str = setting("random", "random: windows anywhere; epochs: each window once, shuffled")
    dtype: str = setting("float32", "compute type; weights and optimizer stay float32")
    seed: int = setting(0, "seed of weights, batches and dropout")
    init_seed: int = setting(-1, "seed of weights and dropout alone (-1: seed)")
    eval_every: int = setting(250, "steps between validations (0: only at the end)")
    save_every: int = setting(0, "steps between checkpoints (0: at every validation)")
    log_every: int = setting(10, "steps between reports of the training loss")
    track: int = setting(0, "steps between records of every head's matrices (0: none)")
    patience: int = setting(0, "stop after this many validations without a better one (0: never)")
    token_memory: int = setting(256, "MB of tokens to keep in memory; a longer text stays on disk")
    compile: str = setting("auto", "mx.compile the step: auto (on a GPU), on or off")
    checkpoint_blocks: bool = setting(
        False, "keep each block's input alone for the backward pass: less memory, more time"
    )

    def __post_init__(self):
        check_choices(self, CHOICES)
        self._check_bounds()
        if not (self.steps or self.epochs or self.minutes):
            raise ConfigError("nothing bounds the training: give steps, epochs or minutes")

    def _check_bounds(self):
        check_bounds(self, _BOUNDS)
        for name in ("beta1", "beta2", "muon_momentum"):
            if getattr(self, name) == 1:
                raise ConfigError(f"{name}=1 never moves a weight: use less than 1, such as 0.9")
        if self.lr == 0:
            raise ConfigError("lr=0 trains nothing: use a positive learning rate")
        if (self.decay, self.optimizer) == ("query-key", "muon"):
            raise ConfigError(
                "decay=query-key is of AdamW, and muon moves W_query and W_key without any: "
                "use --optimizer adamw"
            )
        if self.schedule != "constant" and self.min_lr > self.lr:
            raise ConfigError(
                f"min_lr={self.min_lr} must be at most lr={self.lr}: the schedule goes down"
            )

    @property
    def random_seed(self) -> int:
        """What weights and dropout are drawn from."""
        return self.seed if self.init_seed < 0 else self.init_seed

    def as_dict(self) -> dict[str, Any]:
        """All keys with their values, for a file."""
        return asdict(self)


_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("steps", "warmup", "eval_every", "save_every"), (0, 2**62)),
    **dict.fromkeys(("track", "patience", "token_memory"), (0, 2**62)),
    "base_width": (0, 2**24),
    "log_every": (1, 2**62),
    **dict.fromkeys(("batch_size", "accumulate"), (1, 2**20)),
    **dict.fromkeys(("epochs", "minutes", "weight_decay"), (0, 10**9)),
    "clip": (0, float_info.max),
    **dict.fromkeys(("lr", "min_lr", "muon_lr", "merged_lr"), (0, float_info.max)),
    **dict.fromkeys(("cooldown", "beta1", "beta2", "muon_momentum"), (0, 1)),
    "seed": (0, 2**32 - 1),
    "init_seed": (-1, 2**32 - 1),
}


DEFAULT_PRESET = "tiny"
_BUDGETS = ("steps", "epochs", "minutes")

RESUMABLE = frozenset(
    {*_BUDGETS, "eval_every", "save_every", "log_every", "track", "patience", "compile"}
    | {"data", "token_memory"}
)
"""What may change when a training resumes: its length, its reports, and where its text lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """What a model is trained on."""

    data: str = setting("tales", "tales, a task or a corpus by name, a file, a folder, or -")
    tokenizer: str = setting("bpe", "char, byte, bpe, unigram, gpt2, or a run's directory")
    vocab_size: int = setting(1024, "most tokens that bpe and unigram may use")


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

    def complete(self) -> "Settings":
        """Return the same settings with every key of the model, also those at their default."""
        defaults = {key.name: key.default for key in fields(GPTConfig)}
        return replace(self, model=defaults | dict(self.model))

    def model_config(self, vocab_size: int) -> GPTConfig:
        """The model's configuration, once the tokenizer is known."""
        return config_from({**self.model, "vocab_size": vocab_size})

    def record(self, config: GPTConfig, **facts: Any) -> dict[str, Any]:
        """What config.json holds."""
        plugins = used_plugins(self.model)
        return {
            "preset": self.preset,
            "variant": self.variant,
            "model": config.as_dict(),
            "training": self.training.as_dict(),
            "text": asdict(self.text),
            **({"plugins": plugins} if plugins else {}),
            **facts,
        }


def settings_from(record: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """The settings that a config.json holds, to resume with some of them changed.

    Raises:
        ConfigError: A value cannot work, or a change is not among `RESUMABLE`.
    """
    check_plugins(record)
    changes = expanded(changes)
    _check_resumable(record, changes)
    training, text = keys_of(TrainConfig), keys_of(TextConfig)
    try:
        model = saved_settings(record["model"])
        recipe = _join((validate(record["training"], training), _only(changes, training)))
        where = validate(record["text"], text) | _only(changes, text)
    except ConfigError as error:
        raise ConfigError(f"config.json: {error}") from error
    model.pop("vocab_size", None)
    return Settings(
        str(record.get("preset", "")), model, TrainConfig(**recipe), TextConfig(**where)
    )


def layer_from(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a config.json holds, as a layer for `resolve`."""
    check_plugins(record)
    model = saved_settings(record["model"])
    model.pop("vocab_size", None)
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
    named = max((i for i, layer in enumerate(layers) if "variant" in layer), default=0)
    # A variant replaces all of one below it, its windows too.
    layers = tuple(
        expanded({k: v for k, v in layer.items() if k != "variant" or i == named})
        for i, layer in enumerate(layers)
    )
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
    from mlx_attn.text.tasks import TASKS  # imports NumPy, which `--help` does without

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
    plain = validate(layer, keys_of(*_CONFIGS) | dict.fromkeys(_SEVERAL, str))
    short: dict[str, Any] = {}
    if "block" in plain:
        short |= find_row(BLOCKS, plain.pop("block"), "block")
    if "variant" in plain:
        short |= find_variant(plain.pop("variant")).settings
    return {**short, **plain}


def variant_name(model: Mapping[str, Any]) -> str:
    """Return the row of the table with these maps, or the maps themselves if there is none.

    Of rows with the same maps it is the one with windows in the same layers, and with what else it
    needs, if there is one.
    """
    maps = {key: model.get(key, default) for key, default in MAPS.items()}
    windows = [bool(model.get(key)) for key in ("window", "global_every")]

    def differs(row: Variant) -> tuple[bool, bool, int]:
        other_windows = [bool(row.window), bool(row.global_every)] != windows
        lacks = any(model.get(key) != value for key, value in row.needs.items())
        return other_windows, lacks, -len(row.needs)

    names = [row.name for row in sorted(VARIANTS.values(), key=differs) if row.maps == maps]
    words = [word for key, word in maps.items() if key in _ALWAYS_NAMED or word != MAPS[key]]
    return names[0] if names else "+".join(words)


_ALWAYS_NAMED = ("score", "value", "output")


def _check_resumable(record: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    recorded = {**record, **record["model"], **record["training"], **record["text"]}
    for key, value in changes.items():
        if key not in RESUMABLE and recorded.get(key) != value:
            raise ConfigError(
                f"{key}={value!r} cannot change when a training is resumed: it is "
                f"{recorded.get(key)!r}; what can: {', '.join(sorted(RESUMABLE))}"
            )


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
