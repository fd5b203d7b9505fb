"""Exact identities between the forms of attention, and the best answers where there is none.

Linear weights are stored (out, in), so a row vector x is mapped to x W^T; the letters of the
formulas are the matrices that act on x from the right, as in `q = x W_query`.

The two products serve MLX's arrays and NumPy's alike. Everything else is computed once per
conversion and not on the way to a token, so it is NumPy in float64: Metal has neither float64 nor
a kernel for any decomposition, and NumPy has least squares, which MLX has not.
"""

from mlx_attn.attention.algebra.collaborative import fit_shared_maps
from mlx_attn.attention.algebra.low_rank import balanced_factors, relative_error
from mlx_attn.attention.algebra.products import merge_query_key, merge_value_output
from mlx_attn.attention.algebra.redundancy import Shrunk, shrink, values_from_keys

__all__ = [
    "Shrunk",
    "balanced_factors",
    "fit_shared_maps",
    "merge_query_key",
    "merge_value_output",
    "relative_error",
    "shrink",
    "values_from_keys",
]
