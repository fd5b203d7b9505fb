"""A trained model in another form of attention: exactly where possible, else with its error.

The package can be called: `mlx_attn.convert(model, "merged")` is `mlx_attn.convert.model.convert`.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from mlx_attn.convert.model import convert

        return convert(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
