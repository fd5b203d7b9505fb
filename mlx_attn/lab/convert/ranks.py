"""How much rank a trained model needs: its loss when its products are cut to fewer dimensions."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
from jaxtyping import Integer

from mlx_attn.lab.convert.measure import Figures, figures, weight_errors
from mlx_attn.lab.convert.model import convert
from mlx_attn.lab.convert.table import find_conversion
from mlx_attn.model import GPT
from mlx_attn.training.evaluation import Evaluator


@dataclass(frozen=True, slots=True)
class RankPoint:
    """A model cut to one rank.

    Attributes:
        rank: What the conversion's row says it means.
        figures: The model's loss, size and cache.
        error: Relative error of what was cut, S or VO, of the worst layer.
    """

    rank: int
    figures: Figures
    error: float


@dataclass(frozen=True, slots=True)
class RankCurve:
    """A model and what it is at several ranks.

    Attributes:
        to: The conversion that cuts it.
        original: The model itself.
        points: In the order measured.
    """

    to: str
    original: Figures
    points: tuple[RankPoint, ...]

    def record(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        return asdict(self)


def rank_points(
    model: GPT,
    to: str,
    ranks: Sequence[int],
    evaluator: Evaluator,
    tokens: Integer[mx.array, "B T"] | None = None,
) -> Iterator[RankPoint]:
    """The model at each rank, one at a time: each is converted anew from the model itself.

    Args:
        model: A trained model.
        to: A conversion that takes a rank.
        ranks: In the order wanted.
        evaluator: For all of them.
        tokens: See `convert`.

    Raises:
        ConfigError: The conversion does not apply, or a rank is out of reach.
    """
    conversion = find_conversion(to)
    for rank in ranks:
        same = conversion.changed(model.config, rank) == model.config
        cut = model if same else convert(model, to, rank=rank, tokens=tokens)
        yield RankPoint(rank, figures(cut, evaluator), max(weight_errors(model, cut)))
