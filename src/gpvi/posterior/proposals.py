r"""A posterior together with a generator whose draws chains may jump to.

A generator of several components has no single noise in which chains could run: z alone does not say which component it
belongs to. All that is needed is its exact density q. NUTS then runs in the whitened coordinates, where it explores the
mode it is in, and independence Metropolis steps with q lead from one mode to another (`gpvi.methods.mcmc.Proposing`).
Where q covers the modes, their shares are right in the limit, whatever shares q gives them.
"""

from jaxtyping import Array, Float, PRNGKeyArray

from gpvi.diagnostics.sampling import draw_with_density, log_prob
from gpvi.generators import AbstractGenerator
from gpvi.targets.coordinates import Whitened


class WithProposals(Whitened):
    """A posterior in the coordinates u of training, with draws of a generator as proposals.

    Parameters
    ----------
    generator
        A generator of u whose log q is exact at any point.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=1)
    >>> affine = gpvi.targets.Affine.identity(1, target.dtype)
    >>> generator = gpvi.generators.FullRank().build(1, key=key, dtype="float32")
    >>> density = WithProposals(target, affine, generator)
    >>> u, log_q = density.propose(5, key=key)
    >>> u.shape, log_q.shape
    ((5, 1), (5,))
    """

    generator: AbstractGenerator

    def propose(
        self, n: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Return n draws of the generator with log q of each."""
        u, log_q, _ = draw_with_density(self.generator, n, key)
        return u, log_q

    def log_proposal(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Log q at the points `x`, in the coordinates u."""
        return log_prob(self.generator, x)
