"""Where training starts: a Gaussian in whose coordinates the posterior looks roughly standard normal.

`init="variational"` follows several Gaussians from different starting points as each climbs the ELBO by Newton steps,
and combines their ends by importance sampling. `init="laplace"` takes a Gaussian from the curvature along a Newton
ascent of log p. `init="auto"` tries the first, and then the second if no Gaussian with a finite ELBO is found. (None of
them is `gpvi.Pathfinder`, a method of its own, which climbs log p by L-BFGS [1].) The search runs once, on the host, in
float64 if the log-density can be traced in float64; only the log-density and its derivatives are compiled.

The climb. For q = N(m, LLᵀ), x = m + Lε and the whitened score s(ε) = Lᵀ∇log p(x), the ELBO is stationary [2] where
E s = 0 and Λ = −E[∇_ε s] = I. By Stein's lemma Λ = −E[s εᵀ], which is the slope of the least-squares regression
s ≈ a − Λε. The regression needs no Hessian, and for a Gaussian p it is exact from any d + 2 draws, whatever the
location, scales and correlations. The Newton step

    m ← m + L Λ⁻¹a,    LLᵀ ← L Λ⁻¹ Lᵀ

is the natural gradient at step size one [3]. Since the ELBO contains the entropy, the climb avoids spikes of high
density and little mass (the neck of a funnel), into which an optimiser of log p falls.

The combination. The ends of the paths, weighted by exp ELBO, and the current Gaussian make up a mixture q. Draws from q
with the weights (p/q)^β correct its moments towards those of p.

What is left. Where the Gaussian does not fit, `bending.py` estimates how much of what it misses lies in the marginals.

[1] Zhang, Carpenter, Gelman, Vehtari: Pathfinder: Parallel quasi-Newton variational inference (JMLR 2022).
[2] Opper, Archambeau: The variational Gaussian approximation revisited (Neural Computation 2009).
[3] Khan, Rue: The Bayesian learning rule (JMLR 2023).

May import: `diagnostics`, `targets` and all below them. Start reading at `search.py`, then `_elbo_ascent.py` (the
climb) and `_combination.py`.
"""

from gpvi.initialization._low_rank import RANK as RANK
from gpvi.initialization.bending import share_of_marginals as share_of_marginals
from gpvi.initialization.result import Gaussian as Gaussian
from gpvi.initialization.result import NoPathError as NoPathError
from gpvi.initialization.result import Report as Report
from gpvi.initialization.search import DENSE_DIMENSIONS as DENSE_DIMENSIONS
from gpvi.initialization.search import automatic as automatic
from gpvi.initialization.search import laplace as laplace
from gpvi.initialization.search import low_rank as low_rank
from gpvi.initialization.search import variational as variational
