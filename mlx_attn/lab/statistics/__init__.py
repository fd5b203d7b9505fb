"""Statistics of paired comparisons: intervals, verdicts, and what a number of seeds can resolve."""

from mlx_attn.lab.statistics.verdict import Verdict

__all__ = ["Verdict"]
