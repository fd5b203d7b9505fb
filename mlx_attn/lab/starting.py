"""A trained model as the start of another training, in the form that one is to have."""

from mlx_attn.errors import ConfigError
from mlx_attn.lab.convert import convert, find_conversion
from mlx_attn.model import GPT, GPTConfig

_FORMS = {(True, False): "merged", (False, True): "merged-output", (True, True): "merged-both"}
"""The conversion that is exact for every model: by whether scores and output become merged."""

_OF_TRAINING = frozenset({"drop_rate", "merged_start", "start"})
"""Keys that say nothing of the function that a model computes once it is trained."""


def starting_point(source: GPT, wanted: GPTConfig) -> GPT:
    """The same function in the form that is wanted: the form it has, or with products merged.

    Args:
        source: A trained model; it is left as it was.
        wanted: The configuration of the training to come.

    Returns:
        The source itself, where it has that form.

    Raises:
        ConfigError: Its weights cannot be taken over exactly, with the reason.
    """
    have = source.config
    merges = _merges("score", have, wanted), _merges("output", have, wanted)
    form = _FORMS.get(merges)
    _check_same(find_conversion(form).target(have) if form else have, wanted)
    return convert(source, form) if form else source


def _merges(key: str, have: GPTConfig, wanted: GPTConfig) -> bool:
    return getattr(wanted, key) == "merged" != getattr(have, key)


def _check_same(target: GPTConfig, wanted: GPTConfig) -> None:
    given, asked = target.as_dict(), wanted.as_dict()
    for key in given:
        if key not in _OF_TRAINING and given[key] != asked[key]:
            raise ConfigError(
                f"the weights of a model with {key}={given[key]!r} are no start for "
                f"{key}={asked[key]!r}: keep {key}; only the form of attention may change, to "
                "score=merged or output=merged"
            )
