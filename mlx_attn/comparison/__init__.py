"""Comparisons of attention with error bars: the plan, the trials, the statistics, the report."""
