"""Comparisons of attention with error bars: the plan, the trainings, and what came of them."""
