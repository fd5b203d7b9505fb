"""A trained model in another form of attention: exactly where possible, else with its error.

`table` says which conversions there are, `readers` and the writers what every form is made of.
"""

from mlx_attn.lab.convert.model import convert
from mlx_attn.lab.convert.norms import fold_norms
from mlx_attn.lab.convert.table import CONVERSIONS, Conversion, find_conversion

__all__ = ["CONVERSIONS", "Conversion", "convert", "find_conversion", "fold_norms"]
