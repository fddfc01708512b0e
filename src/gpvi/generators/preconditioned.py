"""x = location + L f(z): a generator that was trained in coordinates where the posterior has scale one.

J = L ∂f/∂z, so log|det J| gains log|det L|, and Jᵀy = v is one solve with (∂f/∂z)ᵀ, then one with Lᵀ.
"""

import jax.numpy as jnp
import lineax as lx
from jaxtyping import Scalar

from gpvi._compute.precision import product
from gpvi.generators.base import AbstractGenerator
from gpvi.targets.coordinates import Affine
from gpvi.targets.semiseparable import Semiseparable


class Preconditioned(AbstractGenerator):
    """A generator followed by an affine map with diagonal or lower-triangular scale L.

    Since L is lower-triangular, x_head still depends on z_head alone: A = L₁₁ ∂f_head/∂z_head. The tail block L₂₂ diag
    σ is triangular rather than diagonal; `tail_scale` is its diagonal, which is what the determinant needs.

    Parameters
    ----------
    generator
        f.
    affine
        x = location + L u.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> posterior = gpvi.fit(target, gpvi.FullRankVI(), key=key, steps=10, progress=False)
    >>> isinstance(posterior.generator, gpvi.generators.Preconditioned)
    True
    """

    generator: AbstractGenerator
    affine: Affine

    @property
    def injective(self) -> bool:
        """As the generator's."""
        return self.generator.injective

    @property
    def dim(self) -> int:
        """d."""
        return self.generator.dim

    @property
    def latent(self) -> int:
        """k."""
        return self.generator.latent

    @property
    def constant_head(self) -> bool:
        """As the generator's."""
        return self.generator.constant_head

    def noise(self, n, *, key):
        """Draw the noise of the generator."""
        return self.generator.noise(n, key=key)

    def split(self, z):
        """Return z_head and z_tail."""
        return self.generator.split(z)

    def __call__(self, z):
        """Return location + L f(z)."""
        return self.affine(self.generator(z))

    def head(self, z_head):
        """Return location₁ + L₁₁ f_head(z_head)."""
        return self._head_affine()(self.generator.head(z_head))

    def tail(self, z_head, z_tail):
        """Return location₂ + L₂₁ f_head + L₂₂ f_tail."""
        u = jnp.concatenate([self.generator.head(z_head), self.generator.tail(z_head, z_tail)])
        return self.affine(u)[self.latent :]

    def tail_scale(self, z_head):
        """Return |diag L₂₂| σ."""
        return jnp.abs(self.affine.diagonal[self.latent :]) * self.generator.tail_scale(z_head)

    def head_jacobian(self, z_head):
        """Return L₁₁ A."""
        scale = self._head_affine().scale
        block = self.generator.head_jacobian(z_head)
        if isinstance(scale, Semiseparable):
            scale = scale.dense()
        if scale.ndim == 2:
            return lx.MatrixLinearOperator(product(scale, block.as_matrix()))
        if isinstance(block, lx.DiagonalLinearOperator):
            return lx.DiagonalLinearOperator(scale * lx.diagonal(block))
        return lx.MatrixLinearOperator(scale[:, None] * block.as_matrix())

    def head_log_det(self, z_head):
        """Return the sign of det L₁₁ det A, and log|det A| + log|det L₁₁|."""
        sign, log_det = self.generator.head_log_det(z_head)
        diagonal = self._head_affine().diagonal
        return sign * jnp.prod(jnp.sign(diagonal)), log_det + jnp.log(jnp.abs(diagonal)).sum()

    def log_det(self, z):
        """Return the sign of det L det J, and log|det L| + log|det J|."""
        sign, log_det = self.generator.log_det(z)
        return sign * self._orientation(), log_det + self.affine.log_det()

    def transform_and_log_det(self, z):
        """Return x, the sign of det J, and log|det J|."""
        u, sign, log_det = self.generator.transform_and_log_det(z)
        return self.affine(u), sign * self._orientation(), log_det + self.affine.log_det()

    def transform_and_log_prob(self, z):
        """Return x, log q(x) and the sign of det J."""
        u, log_q, sign = self.generator.transform_and_log_prob(z)
        return self.affine(u), log_q - self.affine.log_det(), sign * self._orientation()

    def inverse(self, x):
        """Return f^{-1}(L^{-1}(x − location))."""
        return self.generator.inverse(self.affine.inverse(x))

    def log_prob(self, x):
        """Return log q at a given x."""
        return self.generator.log_prob(self.affine.inverse(x)) - self.affine.log_det()

    def _orientation(self) -> Scalar:
        """The sign of det L."""
        return jnp.prod(jnp.sign(self.affine.diagonal))

    def _head_affine(self) -> Affine:
        return self.affine.leading(self.latent)
