"""Claims of others as protocols: what each says, who said it, and how it is put to the test."""

from mlx_attn.lab.claims.claim import Claim, Contest, Examination, Finding
from mlx_attn.lab.claims.table import CLAIMS, find_claim

__all__ = ["CLAIMS", "Claim", "Contest", "Examination", "Finding", "find_claim"]
