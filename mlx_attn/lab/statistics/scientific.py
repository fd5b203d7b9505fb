"""The parts of scipy that this room uses, or one line that says how to get them."""

from mlx_attn.errors import RunError

try:
    from scipy import optimize, special, stats
except ImportError as error:
    raise RunError("statistics need scipy: pip install 'mlx-attn[lab]'") from error

__all__ = ["optimize", "special", "stats"]
