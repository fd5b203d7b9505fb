"""The spectra of S_h and V_h O_h, and how alike the heads of a layer are, for a whole model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from mlx_attn.attention import Attention
from mlx_attn.attention.circuits import HeadProducts, score_products, value_output_products
from mlx_attn.attention.spectra import alignment, spectrum
from mlx_attn.model import GPT

PerHead = Float64[np.ndarray, "L H"]


@dataclass(frozen=True, slots=True)
class HeadMatrices:
    """One kind of matrix, S_h or V_h O_h, of all heads; see `mlx_attn.attention.spectra`.

    Attributes:
        singular_values: Largest first.
        effective_rank: How many directions are used.
        stable_rank: The same, blind to small values.
        norm: Frobenius norm.
        symmetry: 1 if symmetric, -1 if antisymmetric.
        alignment: Of every two heads of a layer: 1 for the same matrix up to a factor.
    """

    singular_values: Float64[np.ndarray, "L H rank"]
    effective_rank: PerHead
    stable_rank: PerHead
    norm: PerHead
    symmetry: PerHead
    alignment: Float64[np.ndarray, "L H H"]


def score_spectra(model: GPT) -> HeadMatrices:
    """What there is to say of S_h.

    Raises:
        RunError: Weights are not finite.
    """
    return _measured(score_products, model)


def value_output_spectra(model: GPT) -> HeadMatrices:
    """What there is to say of V_h O_h.

    Raises:
        RunError: Weights are not finite.
    """
    return _measured(value_output_products, model)


def _measured(products_of: Callable[[Attention], HeadProducts], model: GPT) -> HeadMatrices:
    products = [products_of(block.att) for block in model.trf_blocks]
    spectra = [spectrum(product) for product in products]
    return HeadMatrices(
        singular_values=_stack(s.singular_values for s in spectra),
        effective_rank=_stack(s.effective_rank for s in spectra),
        stable_rank=_stack(s.stable_rank for s in spectra),
        norm=_stack(s.norm for s in spectra),
        symmetry=_stack(s.symmetry for s in spectra),
        alignment=_stack(alignment(product.matrices()) for product in products),
    )


def _stack(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.stack(list(arrays))
