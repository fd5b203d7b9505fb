"""The table of tasks: what each asks, what it is predicted to tell apart, and how to train it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RECIPE: dict[str, Any] = {
    "n_layers": 2,
    "n_heads": 4,
    "emb_dim": 64,
    "norm": "rmsnorm",
    "activation": "relu2",
    "bias": False,
    "start": "zero",
    "position": "learned",
    "optimizer": "muon",
    "muon_lr": 0.01,
    "lr": 6e-3,
    "schedule": "trapezoid",
    "warmup": 20,
    "batch_size": 64,
    "eval_every": 100,
}
"""What every task is trained with, 2 layers of width 64, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A probing task.

    Attributes:
        name: What `--data` calls it.
        summary: What a document is, in one line.
        separates: Which forms of attention it is predicted to tell apart, in one sentence.
        sizes: Arguments of its generator.
        length: Symbols of a document.
        steps: With the `RECIPE`, enough to solve it: about a minute of a laptop's processor.
    """

    name: str
    summary: str
    separates: str
    sizes: Mapping[str, Any]
    length: int
    steps: int = 600

    @property
    def fit(self) -> dict[str, Any]:
        """What every training on it needs: its own tokenizer, and room for one document."""
        return {"data": self.name, "tokenizer": "symbols", "context_length": self.length + 1}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings to train it with where nothing else is said."""
        return {**RECIPE, "steps": self.steps, **self.fit}


_TASKS = (
    Task(
        name="copy",
        summary="a random string, then the same string again",
        separates=(
            "one layer from two, with --position alibi or none; with learned positions every form "
            "solves it by looking back a fixed distance, which makes it a control"
        ),
        sizes={"vocabulary": 32, "length": 64},
        length=64,
        steps=300,
    ),
    Task(
        name="recall",
        summary="pairs of a key and a value, then each key again: which value went with it?",
        separates=(
            "rank: factored scores lose keys as heads get narrower, merged scores of full rank "
            "do not; nobody loses with one head"
        ),
        sizes={"keys": 64, "values": 64, "pairs": 8},
        length=32,
    ),
    Task(
        name="permuted-recall",
        summary="as recall, but a query q asks for the value of the key after q",
        separates=(
            "asymmetry: with shared query and key a symbol is most similar to itself, which is the "
            "wrong key; every other form finds the right one"
        ),
        sizes={"keys": 16, "values": 16, "pairs": 8},
        length=32,
    ),
    Task(
        name="offsets",
        summary="digits, each followed by the number that the digits 1, 5 and 11 places back spell",
        separates=(
            "the number of heads: one head mixes the three places into one average, three heads "
            "read them apart"
        ),
        sizes={"base": 4, "numbers": 24, "offsets": (1, 5, 11)},
        length=48,
        steps=400,
    ),
    Task(
        name="markov",
        summary="a Markov chain of three states with transition probabilities of its own",
        separates=(
            "little at the end, more on the way: all forms pass from uniform (1.0986) over "
            "single-state frequencies to the Bayes optimum, one after a longer plateau than another"
        ),
        sizes={"states": 3, "length": 100},
        length=100,
        steps=300,
    ),
    Task(
        name="nearest",
        summary="points of a sphere, then queries: which of the points is nearest?",
        separates=(
            "one head of full rank from many narrow ones: heads narrower than the sphere's space "
            "misjudge distances"
        ),
        sizes={"symbols": 32, "points": 8, "queries": 8, "dimension": 16},
        length=24,
        steps=800,
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _TASKS}
