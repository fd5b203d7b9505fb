"""How a model is trained: every number, with its meaning as `help`."""

from dataclasses import asdict, dataclass, field
from sys import float_info
from typing import Any

from mlx_attn.errors import ConfigError

CHOICES = {
    "optimizer": ("adamw", "muon"),
    "schedule": ("cosine", "trapezoid", "constant"),
    "windows": ("random", "epochs"),
    "decay": ("matrices", "all"),
    "dtype": ("float32", "bfloat16"),
    "compile": ("auto", "on", "off"),
}
"""The settings that are one of a few words."""


def _key(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A training recipe: steps, epochs and minutes bound it, and the first one reached ends it.

    Raises:
        ConfigError: A value cannot work; the message has the number.
    """

    steps: int = _key(0, "optimizer steps (0: no bound)")
    epochs: float = _key(0.0, "passes over the training text (0: no bound)")
    minutes: float = _key(0.0, "wall-clock budget in minutes (0: no bound)")
    batch_size: int = _key(12, "sequences per step")
    accumulate: int = _key(1, "micro-batches per step: batch_size sequences each")
    lr: float = _key(1e-3, "peak learning rate of AdamW")
    min_lr: float = _key(0.0, "learning rate at the end of the schedule")
    muon_lr: float = _key(0.02, "peak learning rate of Muon's matrices")
    merged_lr: float = _key(0.0, "learning rate of S under AdamW, times lr (0: 1 / n_heads)")
    optimizer: str = _key("adamw", "adamw, or muon for the blocks' matrices")
    schedule: str = _key("cosine", "cosine, trapezoid or constant, after the warm-up")
    warmup: int = _key(100, "steps of linear warm-up")
    cooldown: float = _key(0.6, "share of the training that a trapezoid spends decaying")
    weight_decay: float = _key(0.0, "decoupled weight decay of AdamW")
    decay: str = _key("matrices", "what decays: matrices, or all")
    beta1: float = _key(0.9, "AdamW's first decay rate")
    beta2: float = _key(0.99, "AdamW's second decay rate")
    clip: float = _key(1.0, "largest global norm of the gradient (0: no clipping)")
    windows: str = _key("random", "random: windows anywhere; epochs: each window once, shuffled")
    dtype: str = _key("float32", "compute type; weights and optimizer stay float32")
    seed: int = _key(0, "seed of weights, batches and dropout")
    init_seed: int = _key(-1, "seed of weights and dropout alone (-1: seed)")
    eval_every: int = _key(250, "steps between validations (0: only at the end)")
    save_every: int = _key(0, "steps between checkpoints (0: at every validation)")
    log_every: int = _key(10, "steps between reports of the training loss")
    track: int = _key(0, "steps between records of every head's matrices (0: none)")
    patience: int = _key(0, "stop after this many validations without a better one (0: never)")
    token_memory: int = _key(256, "MB of tokens to keep in memory; a longer text stays on disk")
    compile: str = _key("auto", "mx.compile the step: auto (on a GPU), on or off")

    def __post_init__(self):
        self._check_choices()
        self._check_bounds()
        if not (self.steps or self.epochs or self.minutes):
            raise ConfigError("nothing bounds the training: give steps, epochs or minutes")

    def _check_choices(self):
        for key, table in CHOICES.items():
            if getattr(self, key) not in table:
                raise ConfigError(f"{key}='{getattr(self, key)}' must be one of {', '.join(table)}")

    def _check_bounds(self):
        for key, (low, high) in _BOUNDS.items():
            number = getattr(self, key)
            if not low <= number <= high:
                limit = f"at most {high}" if number > high else f"at least {low}"
                raise ConfigError(f"{key}={number} must be {limit}")
        for key in ("beta1", "beta2"):
            if getattr(self, key) == 1:
                raise ConfigError(f"{key}=1 never moves a weight: use less than 1, such as 0.9")
        if self.lr == 0:
            raise ConfigError("lr=0 trains nothing: use a positive learning rate")
        if self.schedule != "constant" and self.min_lr > self.lr:
            raise ConfigError(
                f"min_lr={self.min_lr} must be at most lr={self.lr}: the schedule goes down"
            )

    @property
    def random_seed(self) -> int:
        """What MLX's random numbers are seeded with: weights and dropout."""
        return self.seed if self.init_seed < 0 else self.init_seed

    def as_dict(self) -> dict[str, Any]:
        """All keys with their values, for a file."""
        return asdict(self)


_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("steps", "warmup", "eval_every", "save_every"), (0, 2**62)),
    **dict.fromkeys(("track", "patience", "token_memory"), (0, 2**62)),
    **dict.fromkeys(("batch_size", "accumulate", "log_every"), (1, 2**62)),
    **dict.fromkeys(("epochs", "minutes", "weight_decay", "clip"), (0, float_info.max)),
    **dict.fromkeys(("lr", "min_lr", "muon_lr", "merged_lr"), (0, float_info.max)),
    **dict.fromkeys(("cooldown", "beta1", "beta2"), (0, 1)),
    "seed": (0, 2**32 - 1),
    "init_seed": (-1, 2**32 - 1),
}
