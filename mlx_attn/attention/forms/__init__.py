"""The variants, a file for each form, found by its name: formula, paper, weights, state, row.

A file here registers choices and rows of the variants' table when this folder is imported, as a
user's file does with `--plugin`; some hold only what several forms share.
"""

from importlib import import_module
from pkgutil import iter_modules

from mlx_attn.attention.catalog import GROUPS, VARIANTS

import_module("mlx_attn.attention.maps")  # the standard form comes first
for _form in iter_modules(__path__):
    import_module(f"{__name__}.{_form.name}")
VARIANTS.rows = dict(sorted(VARIANTS.rows.items(), key=lambda row: GROUPS.index(row[1].group)))
