"""Statistics of comparisons: intervals, verdicts, and what a number of seeds can resolve.

Start with `judging`; `decisions` holds the tests, `planning` the seeds, `solving` what fits tasks
that are either solved or not. All but the plain data needs scipy, from the extra `lab`.
"""

from typing import TYPE_CHECKING

from mlx_attn.lab.statistics.verdict import Verdict
from mlx_attn.lazy import lazily

if TYPE_CHECKING:
    from mlx_attn.lab.statistics.decisions import holm
    from mlx_attn.lab.statistics.judging import judge
    from mlx_attn.lab.statistics.planning import resolvable, seeds_for
    from mlx_attn.lab.statistics.solving import Attempt, SolveRate, log_rank, solve_rate

__all__ = [
    "Attempt",
    "SolveRate",
    "Verdict",
    "holm",
    "judge",
    "log_rank",
    "resolvable",
    "seeds_for",
    "solve_rate",
]

__getattr__ = lazily(
    __name__,
    {
        "Attempt": "solving",
        "SolveRate": "solving",
        "holm": "decisions",
        "judge": "judging",
        "log_rank": "solving",
        "resolvable": "planning",
        "seeds_for": "planning",
        "solve_rate": "solving",
    },
)
