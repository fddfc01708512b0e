"""The evidence Z = E_q[p/q] by importance sampling from q, and how far it can be relied on."""

import math

import numpy as np
from jaxtyping import Float


def log_evidence(log_ratios: Float[np.ndarray, " m"], n: int) -> float:
    """log Z by log p − log q at n draws of q, of which those outside the support of p may be left out."""
    top = log_ratios.max()
    return float(top + np.log(np.exp(log_ratios - top).sum() / n))


def log_evidence_se(effective_share: float, n: int) -> float:
    """The standard error of log Z by n draws whose weights have this effective share, √((1/share − 1)/n)."""
    return math.sqrt(max(1 / effective_share - 1, 0.0) / n)
