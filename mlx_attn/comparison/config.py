"""The settings of a comparison: its arms, what all of them share, and how sure it is to be."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import inf
from typing import Any, Self

from mlx_attn.attention.catalog import MAPS, REFERENCES, VARIANTS, find_variant
from mlx_attn.errors import ConfigError
from mlx_attn.keys import check_settings, from_text, keys_of, plain, setting, validate
from mlx_attn.model.config import GPTConfig
from mlx_attn.training.config import Settings, TrainConfig, expanded, resolve


@dataclass(frozen=True, slots=True)
class Margin:
    """The difference below which two arms count as the same: one of both is 0."""

    nats: float = 0.0  # per token
    tokens: float = 0.0  # as a share of the control's tokens, whose worth is measured


def margin_from(text: str) -> Margin:
    """Return the margin that a text describes: 0.01 in nats per token, "5%" in tokens.

    Raises:
        ConfigError: It describes none.
    """
    # "5%" -> ("5", "%", ""); anything after the percent sign is an error.
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if rest or not 0 < value < (100 if percent else inf):
        raise ConfigError(
            f"delta '{text}' must be above 0, in nats per token, such as 0.01, or in tokens, such "
            "as 5%, below 100%"
        )
    return Margin(tokens=value / 100) if percent else Margin(nats=value)


@dataclass(frozen=True, slots=True)
class Arm:
    """A name, and the settings that set it apart, flat, `variant` among them."""

    name: str
    settings: Mapping[str, Any]
    lr_scale: float = 1.0  # multiplies all learning rates of the arm; found by tuning


MADE_HERE = frozenset({"seed", "eval_every", "log_every", "track"})
"""Settings of a training that are the comparison's, and the same for every arm."""

OF_VARIANTS = frozenset({"variant", "pattern", *MAPS})
"""Settings that the variant of an arm decides."""


def arm_from(text: str) -> Arm:
    """Return the arm that a text describes: `merged`, or `one head: merged, n_heads=1`.

    Before the colon is its name, after it a variant (else standard) and settings; without a colon
    the text is both.
    """
    name, _, description = validate({"arm": text}, {"arm": str})["arm"].partition(":")
    if text != text.encode(errors="replace").decode():  # no record can hold it
        raise ConfigError(f"'{text}' holds bytes that are not UTF-8: give the arm another name")
    parts: list[str] = []
    for part in filter(None, map(str.strip, (description or text).split(","))):
        # The variants of a pattern stay together.
        if parts and "=" not in part and re.match(r"pattern\s*=", parts[-1]):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    variants = [part for part in parts if "=" not in part]
    changes = [part for part in parts if "=" in part]
    settings = dict(map(_setting, changes))
    if not name.strip() or not parts or len(variants) > 1 or len(settings) < len(changes):
        raise ConfigError(
            f"'{text}' must describe one arm: a variant and settings, each once, as in "
            "'one head: merged, n_heads=1'"
        )
    if fixed := sorted({"vocab_size", *MADE_HERE} & {*settings}):  # whose tokens would differ
        raise ConfigError(f"'{text}': all arms share {', '.join(fixed)}")
    settings["variant"] = find_variant(variants[0]).name if variants else "standard"
    expanded(settings)
    plain = ", ".join([settings["variant"], *changes])
    return Arm(" ".join(name.split()) if description else plain, settings)


def _setting(part: str) -> tuple[str, Any]:
    """Return a key and its value, with the type of that key in its configuration class."""
    key, text = (side.strip() for side in part.split("=", 1))
    key = key.replace("-", "_")
    return key, from_text(key, text, keys_of(GPTConfig, TrainConfig))


def arms_from(texts: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms, the control first, without repeated names or settings."""
    arms = tuple(map(arm_from, texts))
    if len(arms) < 2:
        raise ConfigError("a comparison needs at least two arms: name another variant")
    for other, arm in combinations(arms, 2):
        if arm.name == other.name:
            raise ConfigError(
                f"two arms are called '{arm.name}': give one another name, 'NAME: ...'"
            )
        if arm.settings == other.settings:
            raise ConfigError(f"'{arm.name}' and '{other.name}' are the same: change one of them")
    return arms


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
    references = {row.score for row in VARIANTS.values() if row.group == REFERENCES}
    if not changed or any(other["score"] in references for other in others):
        return None
    # If only scores change, the question is their worth; otherwise the worth of all attention.
    name = "scores-off" if changed <= {"score", "logits", "scale"} else "attention-off"
    settings = {key: value for key, value in arms[0].settings.items() if key not in OF_VARIANTS}
    # It has no keys and values that layers could share.
    return Arm(name, {**settings, "variant": name, "kv_sharing": 0})


DEFAULT_ARMS = ("standard", "merged", "no-query", "no-out-proj")

DEFAULTS: dict[str, Any] = {
    "preset": "nano",
    "n_heads": 4,
    "steps": 500,
    "batch_size": 4,
    "lr": 0.02,
    "muon_lr": 0.03,
}
"""The settings that all arms share if neither a preset nor a task is named.

The cheapest found where queries and keys are worth several margins: without scores the loss is 0.06
nats per token higher (one seed: 0.9175 against 0.8575), where 200 steps of AdamW leave 0.006.
"""

TUNING_SEED = 10_000
"""Where the seeds of tuning begin: never a verdict's seeds."""


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig:
    """A comparison to do. Flags, files and Python call its settings by the same names.

    Raises:
        ConfigError: A value cannot work; the message contains it.
    """

    arms: tuple[Arm, ...]  # the control first
    # The arm that lacks the part in question: its loss shows the part's worth.
    reference: Arm | None = None
    # Settings that all arms share, flat, over `DEFAULTS`.
    shared: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = setting(
        8, "trainings of every arm that the verdict rests on", low=1, high=TUNING_SEED
    )
    delta: str = setting(
        "5%",
        "smaller differences count as none: the worth of 5% of the tokens, or 0.01 nats; --ideas "
        "has no default",
    )
    confidence: float = setting(0.95, "of the intervals", low=0.5, high=1 - 1e-9)
    tune: bool = setting(True, "search each arm's learning rate")
    scales: tuple[float, ...] = setting(
        (0.5, 1.0, 2.0), "factors of the learning rates to begin with"
    )
    tuning_seeds: int = setting(
        2,
        "seeds for each factor, fewer if tuning would train more than the verdict",
        low=1,
        high=TUNING_SEED,
    )
    question: str = setting("", "a sentence for the report's head")
    name: str = "compare"
    command: str = ""
    text: str = ""  # fingerprint of text and tokenizer; `ComparisonRun` fills it in

    @classmethod
    def of(cls, settings: Mapping[str, Any], name: str = "", command: str = "") -> Self:
        """Return the comparison that settings describe: a command's, a script's or a file's.

        Args:
            settings: `arms`, texts as `arm_from` reads them, the control first; `reference`, such
                a text too, "none", or "auto" for the one of `reference_arm`; the settings with a
                meaning; all others belong to a training, and the arms share them.
            name: Also of its directory in runs/; "" makes one from the arms' names.
            command: The command that repeats it, for the report.

        Raises:
            ConfigError: An arm or a setting is impossible.
        """
        known = keys_of(cls)
        given = {key: value for key, value in settings.items() if key in known}
        # A number is a margin in nats.
        given |= {"delta": str(plain(given["delta"]))} if "delta" in given else {}
        shared = {key: plain(one) for key, one in settings.items() if key not in known}
        arms, reference = shared.pop("arms", DEFAULT_ARMS), shared.pop("reference", "auto")
        if not isinstance(arms, list | tuple):
            raise ConfigError(f"arms={arms!r} must be a list, such as ['standard', 'merged']")
        if fixed := sorted((OF_VARIANTS | MADE_HERE) & {*shared}):
            raise ConfigError(f"the arms or the comparison set {', '.join(fixed)}: leave that out")
        expanded(shared)  # raises for what no training has
        chosen = arms_from(arms)
        without = reference_arm(chosen) if reference == "auto" else None
        if reference not in ("auto", "none"):
            without = arm_from(validate({"reference": reference}, {"reference": str})["reference"])
        slug = re.sub(r"[^a-z0-9]+", "-", "-".join(arm.name for arm in chosen).lower())
        return cls(
            arms=chosen,
            reference=without,
            shared=shared,
            name=name or f"compare-{slug.strip('-')[:60]}",
            command=command,
            **validate(given, known),
        )

    def __post_init__(self):
        check_settings(self)
        if min(self.scales, default=0) <= 0 or len({*self.scales}) < len(self.scales):
            raise ConfigError(
                f"scales={self.scales} must be positive factors of the learning rates, each once"
            )
        margin_from(self.delta)
        if self.shared.get("data") == "-":
            raise ConfigError("data=-: every training reads the text, so it must be in a file")
        if (without := self.reference) and any(
            without.name == arm.name or without.settings == arm.settings for arm in self.arms
        ):
            raise ConfigError(
                f"the reference {without.name} is an arm too: choose another, or none"
            )

    @cached_property
    def margin(self) -> Margin:
        """The margin that `delta` describes."""
        return margin_from(self.delta)

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors of the learning rates to begin with; one if nothing is tuned."""
        return self.scales if self.tune else (1.0,)

    @property
    def tunes(self) -> bool:
        """Return whether learning rates are searched for."""
        return len(self.factors) > 1

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        """The arms and the reference."""
        return (*self.arms, self.reference) if self.reference else self.arms

    @property
    def verdict_trials(self) -> int:
        """The number of trainings that the verdict rests on."""
        # Each seed may have a shorter training of the control, which measures the margin.
        return self.seeds * (len(self.all_arms) + (not self.margin.nats))

    @property
    def seeds_for_tuning(self) -> int:
        """Seeds that each factor is tried on; 0 if nothing is tuned."""
        return self.tuning_seeds_of(self.seeds)

    def tuning_seeds_of(self, seeds: int) -> int:
        """Return `tuning_seeds`, or fewer for a verdict of few seeds.

        Tuning takes no more trainings than the verdict, if that has one for every factor.
        """
        return self.tunes * max(1, min(self.tuning_seeds, seeds // len(self.factors)))

    @property
    def extensions(self) -> int:
        """Factors that the search of an arm may add beyond its ends, likewise."""
        return max(0, self.seeds // self.seeds_for_tuning - len(self.factors)) if self.tunes else 0

    def settings(self, arm: Arm) -> Settings:
        """Return all settings of an arm."""
        from mlx_attn.text.tasks import task_of  # imports NumPy, which `--help` avoids

        # A task and a preset come with their own recipes.
        has_recipe = "preset" in self.shared or task_of(str(self.shared.get("data", "")))
        defaults = {} if has_recipe else DEFAULTS
        settings = resolve(defaults, self.shared, arm.settings)
        if not settings.training.steps or settings.training.epochs or settings.training.minutes:
            raise ConfigError("a comparison counts steps: bound it with --steps alone")
        return settings
