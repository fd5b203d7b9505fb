"""The settings of a training, each with its meaning as `help`."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mlx_attn.attention.catalog import MAPS, VARIANTS, find_variant
from mlx_attn.errors import ConfigError, find_row
from mlx_attn.keys import check_settings, keys_of, setting, validate
from mlx_attn.model.config import BLOCKS, PRESETS, GPTConfig, find_preset, variants_of
from mlx_attn.plugins import check_plugins, used_plugins

if TYPE_CHECKING:
    from mlx_attn.text.corpus import Corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A training recipe. It ends at the first bound reached: steps, epochs or minutes.

    Raises:
        ConfigError: A value cannot work; the message contains the number.
    """

    steps: int = setting(0, "optimizer steps (0: no bound)")
    epochs: float = setting(0.0, "passes over the training text (0: no bound)", high=1e9)
    minutes: float = setting(0.0, "wall-clock budget in minutes (0: no bound)", high=1e9)
    batch_size: int = setting(12, "sequences per step", low=1, high=2**20)
    accumulate: int = setting(1, "micro-batches of batch_size per step", low=1, high=2**20)
    lr: float = setting(1e-3, "peak learning rate of AdamW")
    min_lr: float = setting(0.0, "learning rate at the end of the schedule")
    muon_lr: float = setting(0.02, "peak learning rate of Muon's matrices")
    muon_momentum: float = setting(0.95, "momentum of Muon, a moving average", high=0.9999)
    optimizer: str = setting("adamw", "of the blocks' matrices", words=("adamw", "muon"))
    schedule: str = setting(
        "cosine",
        "learning rate after the warm-up (wsd: stable, then decay)",
        words=("cosine", "wsd", "linear", "constant"),
    )
    warmup: int = setting(100, "steps of linear warm-up")
    weight_decay: float = setting(0.0, "decoupled weight decay of AdamW")
    decay: str = setting("matrices", "weights that decay", words=("matrices", "all"))
    beta2: float = setting(0.99, "AdamW's second decay rate; the first is 0.9", high=0.9999)
    clip: float = setting(1.0, "largest global norm of the gradient (0: no clipping)")
    windows: str = setting(
        "random", "anywhere, or each once an epoch, shuffled", words=("random", "epochs")
    )
    dtype: str = setting(
        "float32", "compute type, over weights in float32", words=("float32", "bfloat16")
    )
    seed: int = setting(0, "seed of weights, batches and dropout", high=2**32 - 1)
    eval_every: int = setting(
        250, "steps between validations, each with a checkpoint (0: only at the end)"
    )
    log_every: int = setting(10, "steps between reports of the training loss", low=1)
    track: int = setting(0, "steps between records of every head's matrices (0: none)")
    compile: str = setting(
        "auto",
        "mx.compile the step (auto: on a Mac's GPU; in long runs of train with g++ or on NVIDIA)",
        words=("auto", "on", "off"),
    )

    def __post_init__(self):
        check_settings(self)
        if self.lr == 0:
            raise ConfigError("lr=0 trains nothing: use a positive learning rate")
        if self.schedule != "constant" and self.min_lr > self.lr:
            raise ConfigError(
                f"min_lr={self.min_lr} must be at most lr={self.lr}: the schedule goes down"
            )
        if not (self.steps or self.epochs or self.minutes):
            raise ConfigError("nothing bounds the training: give steps, epochs or minutes")


DEFAULT_PRESET = "tiny"
_BUDGETS = ("steps", "epochs", "minutes")

RESUMABLE = frozenset({*_BUDGETS, "eval_every", "log_every", "track", "compile", "data"})
"""Settings that may change on a resume: the training's length, reports and text's location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """The text that a model is trained on."""

    data: str = setting("tales", "tales, a task or a corpus by name, a file, a folder, or -")
    tokenizer: str = setting("bpe", "char, byte, bpe, unigram, gpt2, or a run or folder with one")
    vocab_size: int = setting(1024, "most tokens that bpe and unigram may use")


_KEYS = keys_of(GPTConfig, TrainConfig, TextConfig)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one training, except the final size of the vocabulary."""

    preset: str
    variant: str  # the name of the attention variant
    model: Mapping[str, Any]
    training: TrainConfig
    text: TextConfig

    @property
    def plugins(self) -> list[dict[str, Any]]:
        """Return the records of the user's files that these settings use."""
        return used_plugins(self.model)

    @property
    def run_name(self) -> str:
        """Return the default name of a run: its preset or task, and its variant."""
        # A colon is not allowed in file names everywhere.
        return f"{self.preset}-{self.variant}".translate(str.maketrans(":,=", "---"))

    def model_config(self, vocab_size: int) -> GPTConfig:
        """Return the model's configuration, once the tokenizer is known."""
        return GPTConfig(**self.model, vocab_size=vocab_size)

    def corpus(self) -> "Corpus":
        """Return the text, as tokens; first refuse an impossible model, because that is quick."""
        from mlx_attn.text.corpus import prepare

        self.model_config(vocab_size=1)
        return prepare(self.text.data, self.text.tokenizer, self.text.vocab_size)

    def record(self, config: GPTConfig, **facts: Any) -> dict[str, Any]:
        """Return the contents of config.json."""
        record = {**asdict(self), "model": config.as_dict(), **facts}
        return record | ({"plugins": plugins} if (plugins := self.plugins) else {})


def settings_from(record: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Read the settings of a config.json, and change some of them to resume.

    Raises:
        ConfigError: A value cannot work, or a change is not among `RESUMABLE`.
    """
    settings, changes = layer_from(record), expanded(changes)
    known = {**settings, "preset": str(record.get("preset", ""))}
    for key, value in changes.items():
        if key not in RESUMABLE and known.get(key) != value:
            raise ConfigError(
                f"{key}={value!r} cannot change when a training is resumed: it is "
                f"{known.get(key)!r}; what can: {', '.join(sorted(RESUMABLE))}"
            )
    return replace(resolve(settings, changes), preset=known["preset"])


def layer_from(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config.json as a layer for `resolve`.

    Raises:
        ConfigError: A value cannot work.
    """
    check_plugins(record)
    # The model's `vocab_size` is its tokenizer's; that of the text is the setting.
    model = {key: value for key, value in record["model"].items() if key != "vocab_size"}
    try:
        layer = validate({**model, **record["training"], **record["text"]}, _KEYS)
    except ConfigError as error:
        raise ConfigError(f"config.json: {error}") from error
    names = {"preset": PRESETS, "variant": VARIANTS}
    return layer | {key: record[key] for key, rows in names.items() if record.get(key) in rows}


def resolve(*layers: Mapping[str, Any]) -> Settings:
    """Merge layers of flat settings, later ones winning, over the preset that they name.

    If the text is a probing task and no preset is named, the task's settings replace the
    preset. The keys preset, variant and block are shorthands for several others.

    Raises:
        ConfigError: A key or a value cannot work.
    """
    from mlx_attn.text.tasks import task_of  # imports NumPy, which `--help` avoids

    # The last layer that names a variant decides: it replaces the whole variant of a lower layer,
    # including its windows and its pattern.
    named = max((i for i, layer in enumerate(layers) if "variant" in layer), default=0)
    given = [
        expanded({k: v for k, v in layer.items() if i >= named or k not in ("variant", "pattern")})
        for i, layer in enumerate(layers)
    ]
    asked = _join(given)
    task = task_of(str(asked.get("data", "")))
    # A task has a recipe of its own, as if it were a preset.
    preset = str(asked.get("preset", task.name if task else DEFAULT_PRESET))
    if task and preset == task.name:
        base = task.settings
    else:
        chosen = find_preset(preset)
        # A named preset keeps its recipe, but its sizes must fit the task.
        base = {**chosen.text, **chosen.training, **chosen.model, **(task.fit if task else {})}
    # Lowest first: preset or task, then the caller's layers.
    merged = _join((expanded(base), *given))

    def of(config: type) -> dict[str, Any]:
        return {key: merged[key] for key in keys_of(config) if key in merged}

    # `vocab_size` is a setting of the text; the tokenizer decides the model's.
    model = {key: value for key, value in of(GPTConfig).items() if key != "vocab_size"}
    variant = variant_name(model, merged.get("variant", ""))
    training, text = TrainConfig(**of(TrainConfig)), TextConfig(**of(TextConfig))
    return Settings(preset, variant, model, training, text)


def expanded(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Check a layer and expand its shorthands `variant`, whose name stays, and `block`.

    A key in the layer itself wins. A variant that is in its `pattern` sets positions, but no maps.

    Raises:
        ConfigError: A key is unknown, a value has the wrong type, or a name is unknown.
    """
    shorthands = dict.fromkeys(("preset", "variant", "block"), str)
    settings = validate(layer, _KEYS | shorthands)
    short: dict[str, Any] = {}
    if "block" in settings:
        short |= find_row(BLOCKS, settings.pop("block"), "block")
    if rows := variants_of(settings.get("pattern", "")):  # which set the maps of their layers
        short |= MAPS
        settings["pattern"] = ",".join(row.name for row in rows)
    if "variant" in settings:
        row = find_variant(settings["variant"])
        short |= row.settings | (MAPS if row in rows else {})
        settings["variant"] = row.name
    return {**short, **settings}


def variant_name(model: Mapping[str, Any], named: str = "") -> str:
    """Return the name of a model's variant: `named`, unless other maps were chosen beside it.

    Such maps have the name of the row that sets exactly them, or their own names joined by "+". A
    pattern is its variants with their numbers of layers in a row, "3xdeltanet+standard".
    """
    if pattern := model.get("pattern"):
        runs = ((name, len([*run])) for name, run in groupby(str(pattern).split(",")))
        return "+".join(name if n == 1 else f"{n}x{name}" for name, n in runs)
    maps = {key: model.get(key, default) for key, default in MAPS.items()}
    if named in VARIANTS and VARIANTS[named].maps == maps:
        return named
    for row in VARIANTS.values():
        if row.settings == maps:
            return row.name
    always = ("score", "value", "output")
    return "+".join(word for key, word in maps.items() if key in always or word != MAPS[key])


def _join(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge layers; one that sets a budget replaces the budgets below it."""
    merged: dict[str, Any] = {}
    for layer in layers:
        # Otherwise --minutes 5 over a preset's 500 steps would end at whichever came first.
        if any(layer.get(budget) for budget in _BUDGETS):
            merged = {k: v for k, v in merged.items() if k not in _BUDGETS}
        merged |= layer
    return merged
