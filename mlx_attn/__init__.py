"""mlx_attn: train, sample, convert and compare tiny GPTs, one part of attention changed at a time.

From Python: see `mlx_attn.api`.

Importing the package makes MLX find a fast BLAS if the wheel's own is slow (see
`mlx_attn.machine.blas`), and nothing else: every room is imported when it is first used.
"""

import sys
from importlib import import_module

from mlx_attn.about import __version__

TYPE_CHECKING = False  # without `typing`, which takes long to import
if TYPE_CHECKING:
    from mlx_attn.api.compared import ComparisonResult, compare
    from mlx_attn.api.loaded import AttentionMaps, LoadedModel, Matrices, load
    from mlx_attn.api.trained import Training, resume, train
    from mlx_attn.machine.device import use_device
    from mlx_attn.plugins import load_plugins

_HOMES = {
    **dict.fromkeys(("load", "LoadedModel", "AttentionMaps", "Matrices"), "api.loaded"),
    **dict.fromkeys(("train", "resume", "Training"), "api.trained"),
    **dict.fromkeys(("compare", "ComparisonResult"), "api.compared"),
    "load_plugins": "plugins",
    "use_device": "machine.device",
}
__all__ = [
    "AttentionMaps",
    "ComparisonResult",
    "LoadedModel",
    "Matrices",
    "Training",
    "__version__",
    "compare",
    "load",
    "load_plugins",
    "resume",
    "train",
    "use_device",
]


class _PreloadWithMLX:
    """A finder for `sys.meta_path` that finds nothing: it loads the BLAS just before MLX is."""

    def find_spec(self, name: str, *_: object) -> None:
        """Load the BLAS if Python is about to import MLX; other finders then find MLX."""
        if name == "mlx.core":
            from mlx_attn.machine.blas import preload

            preload()


if "mlx.core" in sys.modules:
    _PreloadWithMLX().find_spec("mlx.core")  # which warns that it is too late
else:
    sys.meta_path.insert(0, _PreloadWithMLX())


def __dir__() -> list[str]:
    return __all__  # for `help` and completion, before anything is imported


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mlx_attn.{_HOMES[name]}"), name)
