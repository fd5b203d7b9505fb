"""The plan of a comparison: its arms, their shared settings, and trials, the trainings of arms."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import version
from math import inf
from typing import Any, Self

from mlx_attn.about import __version__
from mlx_attn.attention.config import MAPS, REFERENCES, VARIANTS, find_variant
from mlx_attn.errors import ConfigError
from mlx_attn.keys import check_bounds, keys_of, validate
from mlx_attn.machine.device import device_name
from mlx_attn.model.config import GPTConfig
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.text.tasks import task_of
from mlx_attn.training.config import Settings, TrainConfig, expanded, resolve

_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

SHORTER = 4 / 5
"""Share of the steps in the shorter trainings of the control that measure the worth of tokens."""


DELTA = "5%"
"""The margin unless another is named: on every text it means the same."""


def margin_from(text: float | str) -> dict[str, float]:
    """Return the settings of a margin: 0.01 in nats per token, "5%" in tokens.

    Raises:
        ConfigError: It is neither.
    """
    # "5%" -> ("5", "%", ""); anything after the percent sign is an error.
    number, percent, rest = str(text).strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if rest or not 0 < value < (100 if percent else inf):
        raise ConfigError(
            f"delta '{text}' must be above 0, in nats per token, such as 0.01, or in tokens, such "
            "as 5%"
        )
    return {"delta_tokens": value / 100} if percent else {"delta": value}


@dataclass(frozen=True, slots=True)
class Arm:
    """A name, and the settings that set it apart, flat, `variant` among them."""

    name: str
    settings: Mapping[str, Any]
    lr_scale: float = 1.0  # multiplies all learning rates of the arm; found by tuning


def arm_from(text: str) -> Arm:
    """Return the arm that a text describes: `merged`, or `one head: merged, n_heads=1`.

    Before the colon is its name, after it a variant (else standard) and settings; without a colon
    the text is both.
    """
    name, _, description = text.partition(":")
    parts: list[str] = []
    for part in filter(None, map(str.strip, (description or text).split(","))):
        # The variants of a pattern stay together.
        if parts and "=" not in part and re.match(r"pattern\s*=", parts[-1]):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    variants = [part for part in parts if "=" not in part]
    if len(variants) > 1 or not parts:
        raise ConfigError(
            f"'{text}' must describe one arm: a variant and settings, as in "
            "'one head: merged, n_heads=1'"
        )
    changes = [part for part in parts if "=" in part]
    settings = dict(map(_setting, changes))
    settings["variant"] = find_variant(variants[0]).name if variants else "standard"
    expanded(settings)
    plain = ", ".join([settings["variant"], *changes])
    return Arm(" ".join(name.split()) if description else plain, settings)


def _setting(part: str) -> tuple[str, Any]:
    """Return a key and its value, with the type of that key in its configuration class."""
    key, text = (side.strip() for side in part.split("=", 1))
    key, value = key.replace("-", "_"), text
    types = keys_of(GPTConfig, TrainConfig)
    kind = types.get(key, str)
    with suppress(ValueError):
        # Text from the command line: bool("false") would be True.
        value = _TRUTHS.get(text.lower(), text) if kind is bool else kind(text)
    return key, validate({key: value}, types)[key]


def arms_from(texts: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms, the control first, without repeated names or settings."""
    arms: list[Arm] = []
    for arm in map(arm_from, texts):
        for other in arms:
            if arm.name == other.name:
                raise ConfigError(
                    f"two arms are called '{arm.name}': give one another name, 'NAME: ...'"
                )
            if arm.settings == other.settings:
                raise ConfigError(
                    f"'{arm.name}' and '{other.name}' are the same: change one of them"
                )
        arms.append(arm)
    if len(arms) < 2:
        raise ConfigError("a comparison needs at least two arms: name another variant")
    return tuple(arms)


def reference_arm(arms: Sequence[Arm]) -> Arm | None:
    """Return the arm without the part that the arms change, otherwise like the control.

    Without scores, only positions decide; without attention, a token sees the mean of the past. A
    comparison whose arms differ in none of the maps, or which has such an arm, needs no other.
    """
    # Maps that an arm does not name are the standard ones.
    control, *others = ({**MAPS, **expanded(arm.settings)} for arm in arms)
    keys = {*MAPS, "pattern", "n_heads", "n_kv_heads", "head_dim", "value_dim", "scale"}
    # Keys of the attention that any arm changes.
    changed = {k for other in others for k in keys if other.get(k) != control.get(k)}
    # A comparison that already has a reference arm among its arms needs no second one.
    references = {row.score for row in VARIANTS.values() if row.group == REFERENCES}
    if not changed or any(other["score"] in references for other in others):
        return None
    # If only scores change, the question is their worth; otherwise the worth of all attention.
    name = "scores-off" if changed <= {"score", "logits", "scale"} else "attention-off"
    settings = {key: value for key, value in arms[0].settings.items() if key != "pattern"}
    return Arm(name, {**settings, "variant": name})


DEFAULTS: dict[str, Any] = {
    **{"preset": "nano", "n_heads": 4, "steps": 500, "batch_size": 4},
    **{"lr": 0.02, "muon_lr": 0.03},
}
"""The settings that all arms share if neither a preset nor a task is named.

The cheapest found where queries and keys are worth several margins: without scores the loss is 0.06
nats per token higher (one seed: 0.9175 against 0.8575), where 200 steps of AdamW leave 0.006.
"""

TUNING_SEED = 10_000
"""Where the seeds of tuning begin: never a verdict's seeds."""

_BOUNDS = {
    "seeds": (1, TUNING_SEED),
    "tuning_seeds": (1, TUNING_SEED),
    "confidence": (0.5, 1 - 1e-9),
}

POINTS = 8  # validations in the course of a training

RATES = ("lr", "min_lr", "muon_lr")  # the settings that a factor of the learning rates multiplies


def digest_of(value: Any) -> str:
    """Return the BLAKE2b digest of a value as JSON, whatever the order of its keys."""
    # Sorted keys: equal settings have equal digests.
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


_version = cache(version)  # which reads the package's files: a digest is made often


def training_versions() -> tuple[str, str, str]:
    """Return the versions of mlx_attn and mlx, and the kind of device, that a digest depends on."""
    return __version__, _version("mlx"), device_name()


@dataclass(frozen=True)
class Trial:
    """A training to do. Its settings decide all but the time that it takes."""

    arm: str
    settings: Mapping[str, Any]  # all settings, flat, learning rates scaled
    lr_scale: float  # the factor that they were scaled with, for people like `arm`
    text: str  # digest of the training text; "" for a corpus whose download is checked
    # Path, digest and names of the user's files that it needs.
    plugins: Sequence[Mapping[str, Any]] = ()

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def seed(self) -> int:
        """Of weights, batches and dropout; trainings of one seed are pairs."""
        return self.settings["seed"]

    @property
    def digest(self) -> str:
        """Names the training: the same settings, versions and kind of device, the same digest."""
        # Everything that the result depends on; versions too, since kernels round differently.
        plugins = [plugin["sha256"] for plugin in self.plugins]
        return digest_of([training_versions(), self.settings, self.text, plugins])


def make_trial(arm: str, settings: Settings, seed: int, lr_scale: float, text: str) -> Trial:
    """Return the training of these settings with a seed and scaled learning rates."""
    training = settings.training
    # POINTS measurements, evenly spread over the training.
    every = max(1, training.steps // POINTS)
    # One factor for all rates keeps their proportions.
    rates = {key: getattr(training, key) * lr_scale for key in RATES}
    # During training, texts are evaluated on a subset; tasks fully, to find when they are solved.
    evaluated = every if task_of(settings.text.data) else 0
    reports = {"eval_every": evaluated, "track": 0, "log_every": every}
    recipe = replace(training, seed=seed, **rates, **reports).as_dict()
    flat = {"preset": settings.preset, **settings.model, **recipe, **asdict(settings.text)}
    return Trial(arm, flat, lr_scale, text, plugins=settings.plugins)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonConfig:
    """A comparison to do."""

    arms: tuple[Arm, ...]  # the control first
    # The arm that lacks the part in question: its loss shows the part's worth.
    reference: Arm | None = None
    # Settings that all arms share, flat, over `DEFAULTS`.
    shared: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 8  # trainings of each arm that the verdict rests on
    # Differences smaller than this, in nats per token, count as none; 0: those that are worth less
    # than `delta_tokens`, a share of the control's tokens, as shorter trainings of it measure.
    delta: float = 0.0
    delta_tokens: float = 0.05
    confidence: float = 0.95
    # Factors of the learning rates to begin with; only one turns tuning off.
    scales: tuple[float, ...] = (0.5, 1.0, 2.0)
    tuning_seeds: int = 2  # seeds that each factor is tried on, see `seeds_for_tuning`
    name: str = "compare"
    question: str = ""
    command: str = ""
    text: str = ""  # digest of the text; `ComparisonRun` fills it in

    @classmethod
    def of(
        cls,
        arms: Sequence[str],
        reference: str = "auto",
        delta: float | str = DELTA,
        name: str = "",
        **fields: Any,
    ) -> Self:
        """Return the comparison of arms that texts describe.

        Args:
            arms: The control first; see `arm_from`.
            reference: An arm; "auto" is the one of `reference_arm`, "none" no arm.
            delta: See `margin_from`.
            name: Also of its directory in runs/; "" makes one from the arms' names.
            fields: Fields of the configuration.

        Raises:
            ConfigError: An arm, the margin or a field is impossible.
        """
        chosen = arms_from(arms)
        without = reference_arm(chosen) if reference == "auto" else None
        if reference not in ("auto", "none"):
            without = arm_from(reference)
        slug = re.sub(r"[^a-z0-9]+", "-", "-".join(arm.name for arm in chosen).lower())
        name = name or f"compare-{slug.strip('-')[:60]}"
        return cls(arms=chosen, reference=without, name=name, **margin_from(delta), **fields)

    def __post_init__(self):
        check_bounds(self, _BOUNDS)
        if not self.delta >= 0:
            raise ConfigError(f"delta={self.delta} must be above 0, or 0 for a margin in tokens")
        if min(self.scales, default=0) <= 0:
            raise ConfigError(
                "the factors of the learning rates must be positive, and at least one"
            )

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        """The arms and the reference."""
        return (*self.arms, self.reference) if self.reference else self.arms

    @property
    def tunes(self) -> bool:
        """Return whether learning rates are searched for."""
        return len(self.scales) > 1

    @property
    def verdict_trials(self) -> int:
        """The number of trainings that the verdict rests on."""
        # Each seed may have a shorter training of the control, which measures the margin.
        return self.seeds * (len(self.all_arms) + (not self.delta))

    @property
    def seeds_for_tuning(self) -> int:
        """Seeds that each factor is tried on: `tuning_seeds`, or fewer if the verdict has few.

        Tuning takes no more trainings than the verdict, if that has one for every factor.
        """
        if not self.tunes:
            return 0
        return max(1, min(self.tuning_seeds, self.seeds // len(self.scales)))

    @property
    def extensions(self) -> int:
        """Factors that the search of an arm may add beyond its ends, likewise."""
        return max(0, self.seeds // self.seeds_for_tuning - len(self.scales)) if self.tunes else 0

    def settings(self, arm: Arm, changes: Mapping[str, Any] | None = None) -> Settings:
        """Return all settings of an arm, with changes."""
        # A task and a preset come with their own recipes.
        has_recipe = "preset" in self.shared or task_of(str(self.shared.get("data", "")))
        defaults = {} if has_recipe else DEFAULTS
        settings = resolve(defaults, self.shared, arm.settings, changes or {})
        if not settings.training.steps or settings.training.epochs or settings.training.minutes:
            raise ConfigError("a comparison counts steps: bound it with --steps alone")
        return settings

    def trial(self, arm: Arm, seed: int, changes: Mapping[str, Any] | None = None) -> Trial:
        """Return the training of an arm with a seed, and with changes of its settings."""
        return make_trial(arm.name, self.settings(arm, changes), seed, arm.lr_scale, self.text)


def corpus_of(settings: Settings) -> Corpus:
    """Return the text that settings name, as tokens."""
    text = settings.text
    return prepare(text.data, text.tokenizer, text.vocab_size)


def floor_of(corpus: Corpus) -> float | None:
    """Return the least possible loss on the validation text, in nats per scored token."""
    floor, split = corpus.val.floor_nats, corpus.val
    scored = len(split.tokens) - 1 if split.scored is None else split.n_scored
    return None if floor is None else floor / scored
