"""What a float type cannot resolve: coordinates far from zero, large values of log p, and scales far apart."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Array, Float

from gpvi.targets.preflight._report import Finding

COARSE, COARSE_LOG_DENSITY = 0.02, 0.25
"""The float spacing, in standard deviations and in nats, above which the user is warned after the search."""


def rounded(
    location: Float[Array, " d"],
    deviations: Float[Array, " d"],
    log_density: float | None,
    names: Callable[[], Sequence[str]],
) -> tuple[str, ...]:
    """What the dtype of `location` cannot resolve in a posterior with this location and these standard deviations."""
    dtype = np.dtype(location.dtype)
    eps = float(np.finfo(dtype).eps)
    centre, sd = np.asarray(location, np.float64), np.asarray(deviations, np.float64)
    steps = np.abs(centre) * eps
    worst, notes = int(np.argmax(steps / sd)), []
    if steps[worst] > COARSE * sd[worst]:
        notes.append(
            f"{names()[worst]} is near {centre[worst]:.3g} with sd {sd[worst]:.2g}, where {dtype} has steps of "
            f"{steps[worst]:.1g}: many draws are equal. Use dtype='float64', or subtract a typical value"
        )
    if log_density is not None and abs(log_density) * eps > COARSE_LOG_DENSITY:
        notes.append(
            f"log p is {log_density:.3g}, which {dtype} resolves to {abs(log_density) * eps:.1g} nats: the evidence, "
            "importance weights and k̂ are as coarse. Use dtype='float64', or drop terms that do not depend on x"
        )
    return tuple(notes)


def resolution(
    value: float, scale: np.ndarray, dtype: np.dtype, names: Sequence[str]
) -> list[Finding]:
    """Whether the dtype resolves log p at the start, and scales that differ much."""
    findings = []
    step = abs(value) * float(np.finfo(dtype).eps)
    if step > 0.01:
        findings.append(
            Finding(
                "warning",
                f"log p is {value:.3g} at the start, which {dtype} resolves to ±{step:.2g}",
                "Differences of order 1 matter: use dtype='float64', start nearer to the bulk, or drop constants.",
            )
        )
    finite = np.flatnonzero(np.isfinite(scale))
    if len(finite) < 2:
        return findings
    least, most = (int(finite[pick(scale[finite])]) for pick in (np.argmin, np.argmax))
    ratio = scale[most] / scale[least]
    if ratio > 1e3:
        severe = ratio > 1e-1 / np.finfo(dtype).eps
        findings.append(
            Finding(
                "warning" if severe else "note",
                f"scales differ by {ratio:.1g}: {names[least]} has {scale[least]:.2g}, {names[most]} {scale[most]:.2g}",
                "gpvi.fit whitens by default (init='auto'); with init=None rescale the coordinates yourself."
                + (" Use dtype='float64'." if severe else ""),
            )
        )
    return findings
