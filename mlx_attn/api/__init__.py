"""The laboratory from Python, for scripts and notebooks: load, train, resume, compare.

    import mlx_attn

    model = mlx_attn.load("runs/tiny-standard")
    print(model.generate("One rainy day", temp=0.7))
    model.attention("One rainy day, patient Hugo was")  # in a notebook: the map of every head
    model.matrices(layer=0).S  # S_h of every head, (H, C, C)

    training = mlx_attn.train("runs/mine", preset="nano", variant="merged", steps=200)
    for event in training:
        ...
    mlx_attn.resume("runs/mine", steps=400).run()
    mlx_attn.compare("standard", "merged", steps=200, seeds=3, out="runs/merged")

Nothing is printed: training and comparing yield or hand over events. Results show themselves:
`print` gives a line, rich a table, a notebook HTML with figures. The choices of a user's own
files are known after `load_plugins`, or with `plugins=`. `use_device("cpu")`, before anything else,
computes on the processor of a machine that has a GPU.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    "compare",
    "load",
    "load_plugins",
    "resume",
    "train",
    "use_device",
]


def __getattr__(name: str) -> Any:
    """Imported when first used: reading a model takes neither scipy nor matplotlib."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mlx_attn.{_HOMES[name]}"), name)
