"""Who does the trainings of a comparison: one process each or replicas, on one machine or several.

Chosen here, once. Trainings done apart and as replicas differ in the last digits, so they are kept
in folders of their own and never compared with each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlx_attn.attention.metal import on_gpu
from mlx_attn.lab.compare.batches import MOST, Divide, apart, of_one_form
from mlx_attn.lab.compare.cell import corpus_of
from mlx_attn.lab.compare.crew import Crew, Trains, usual_size
from mlx_attn.lab.compare.joined import JoinedCrew
from mlx_attn.lab.compare.store import Store
from mlx_attn.training.ranks import ALONE, Ranks
from mlx_attn.training.replicas import check_alike, pays_off, with_seeds
from mlx_attn.training.settings import Settings

TOGETHER = ("auto", "on", "off")
"""Whether trainings of one form are done together, as replicas."""

Example = Callable[[], Settings | None]
"""Settings of a training such as those to come; None where there are none."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to do trainings.

    Attributes:
        name: For people.
        folder: Where its results are.
        divide: Which trainings one process does.
    """

    name: str
    folder: str
    divide: Divide


WAYS = {
    "off": Way("apart", "trainings", apart),
    "on": Way("as replicas", "replicas", of_one_form),
}


def crew_for(
    directory: Path, jobs: int, together: str, example: Example, ranks: Ranks = ALONE
) -> Trains:
    """Whoever does the trainings of a comparison.

    Args:
        directory: Where finished trainings are kept, in a folder of their way.
        jobs: Processes at once on every rank; 0 is one for every core, and one on a GPU.
        together: One of `TOGETHER`. With "auto" it is as it was in this directory before; else
            replicas on a GPU, if one process trains at a time and a short trial finds them faster.
        example: A training such as those to come.
        ranks: Processes that share the trainings; rank 0 decides.

    Raises:
        ConfigError: Such trainings cannot be done together.
        LostRank: A rank is gone.
    """
    size = jobs or usual_size()
    decided = "" if ranks.rank else _decided(directory, size, together, example)
    way = WAYS[ranks.first(decided)]
    crew = Crew(Store(directory / way.folder), size, way.divide, way.name)
    return JoinedCrew(crew, ranks) if ranks.size > 1 else crew


def _decided(directory: Path, size: int, together: str, example: Example) -> str:
    """One of `WAYS`."""
    if together == "auto":
        return _as_before(directory) or _faster(size, example)
    settings = example()
    if together == "on" and settings:
        check_alike(with_seeds(settings, MOST))
    return together


def _as_before(directory: Path) -> str:
    """The way of the trainings that a directory has; "" where it has none."""
    ways = (name for name, way in WAYS.items() if any((directory / way.folder).glob("*.json")))
    return next(ways, "")


def _faster(size: int, example: Example) -> str:
    """What a short trial finds faster on a GPU; on a processor, processes side by side are."""
    settings = example() if size == 1 and on_gpu() else None
    if not settings or settings.model.get("drop_rate"):
        return "off"
    return "on" if pays_off(with_seeds(settings, MOST), corpus_of(settings)) else "off"
