"""Tales: short English stories told by a grammar, the text a tiny GPT learns if given no other.

Every tale has exactly one derivation, so its exact probability is known, and with it the least loss
that a model can reach. Every byte is marked with what it takes to predict it (`ABILITIES`), so that
a loss can be split by ability.
"""

from mlx_attn.text.tales.corpus import Span, Tale, TalesText, parse, tales, tell
from mlx_attn.text.tales.words import ABILITIES

__all__ = ["ABILITIES", "Span", "Tale", "TalesText", "parse", "tales", "tell"]
