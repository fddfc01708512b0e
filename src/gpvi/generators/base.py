r"""The interface of a generator x = f_θ(z): its specification, and the map it builds.

The noise z ∈ R^d is split into z_head ∈ R^k, which drives the networks, and z_tail. A map has the block-triangular
Jacobian

    J = ∂f/∂z = [ A  0 ; B  diag σ ],   A = ∂x_head/∂z_head,  B = ∂x_tail/∂z_head,

(Eq. 7 of the paper, and the injective forms that go beyond it), so that log|det J| = log|det A| + Σ log σ, and
Jᵀy = v takes one k×k solve and one vjp (`gpvi.solvers`). For k = d there is no tail, and J = A may be anything.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree, Scalar

from gpvi._compute import inverses
from gpvi.errors import NotAvailableError
from gpvi.generators.noise import log_standard_normal, standard_normal


class LastLayer(NamedTuple):
    """A layer x_i = W h_i + … for the coordinates from `first` on, where W holds nearly all of the parameters.

    Its gradient is a sum of few outer products, which the training step can use without forming it.
    """

    weight: Callable[[Any], Float[Array, "t w"]]
    """Returns W, given the generator."""
    features: Callable[[Float[Array, " k"]], Float[Array, " w"]]
    """Returns h, given z_head."""
    first: int
    in_log_det: bool
    """Whether log|det J| also depends on W."""


class AbstractGenerator(eqx.Module):
    """A map f: R^d → R^d with block-triangular Jacobian, for one point; use `jax.vmap` for batches.

    Subclass it for a map of your own. A subclass must define `dim`, `injective` and `head`. If k < d, it must also
    define `latent`, `tail` and `tail_scale`. Its floating-point arrays are its parameters. Everything is traced, so it
    must be made of JAX operations.

    Examples
    --------
    >>> generator = gpvi.generators.Triangular().build(3, key=key, dtype="float32")
    >>> x, sign, log_det = generator.transform_and_log_det(jnp.zeros(3))
    >>> x.shape, generator.dim, generator.injective
    ((3,), 3, True)
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """d, the dimension of x and z."""

    @property
    @abstractmethod
    def injective(self) -> bool:
        """Whether f is injective for every value of its parameters, so that densities are exact."""

    @abstractmethod
    def head(self, z_head: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return x_head, a function of z_head alone; for k = d it is all of x."""

    @property
    def latent(self) -> int:
        """k, the number of head coordinates; d by default."""
        return self.dim

    def tail(self, z_head: Float[Array, " k"], z_tail: Float[Array, " t"]) -> Float[Array, " t"]:
        """Return x_tail, affine in z_tail with slope σ; empty by default, as z_tail is for k = d."""
        return z_tail

    def tail_scale(self, z_head: Float[Array, " k"]) -> Float[Array, " t"]:
        """Return σ = ∂x_tail/∂z_tail, which must be positive; empty by default."""
        return z_head[:0]

    @property
    def constant_head(self) -> bool:
        """Whether A is the same for every z, so that one factorisation serves all; False by default."""
        return False

    @property
    def last_layer(self) -> LastLayer | None:
        """The layer that holds nearly all parameters, if there is one; it only saves time. None by default."""
        return None

    def scale_parameters(self) -> PyTree[bool]:
        """Return which parameters set σ alone; none by default.

        A kernel on z_head gives these no gradient, so they are trained by the pathwise gradient.
        """
        return jax.tree.map(lambda _: False, self)

    def inverse(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the z with f(z) = x.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the inverse has no closed form; this is the default.
        """
        raise no_inverse(type(self).__name__)

    def noise(self, n: int, *, key: PRNGKeyArray) -> PyTree[Array]:
        """Draw n rows of what the generator turns into draws: z ~ N(0, I), (n, d)."""
        return standard_normal(self, n, key=key)

    def __call__(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return x = f(z)."""
        z_head, z_tail = self.split(z)
        return jnp.concatenate([self.head(z_head), self.tail(z_head, z_tail)])

    def split(self, z: Float[Array, " d"]) -> tuple[Float[Array, " k"], Float[Array, " t"]]:
        """Return z_head and z_tail."""
        return z[: self.latent], z[self.latent :]

    def head_jacobian(self, z_head: Float[Array, " k"]) -> lx.AbstractLinearOperator:
        """Return A as an operator with the structure, such as diagonal, that a solver may exploit."""
        return lx.MatrixLinearOperator(jax.jacfwd(self.head)(z_head))

    def head_log_det(self, z_head: Float[Array, " k"]) -> tuple[Scalar, Scalar]:
        """Return the sign of det A, and log|det A|."""
        return inverses.log_det(self.head_jacobian(z_head).as_matrix())

    def head_log_det_given(
        self, z_head: Float[Array, " k"], inverse: Float[Array, "k k"]
    ) -> Scalar:
        """Return tr(A⁻¹A) with a given A⁻¹, only to be differentiated: its gradient is that of log|det A|."""
        return (inverse.T * self.head_jacobian(z_head).as_matrix()).sum()

    def tail_transposed_product(
        self, z: Float[Array, " d"], y_tail: Float[Array, " t"]
    ) -> Float[Array, " k"]:
        """Return Bᵀ y_tail, by one vjp."""
        z_head, z_tail = self.split(z)
        _, vjp = jax.vjp(lambda head: self.tail(head, z_tail), z_head)
        return vjp(y_tail)[0]

    def log_det(self, z: Float[Array, " d"]) -> tuple[Scalar, Scalar]:
        """Return the sign of det J, which the fold fraction needs, and log|det J|, which Eq. 1 needs."""
        z_head, _ = self.split(z)
        sign, log_det = self.head_log_det(z_head)
        return sign, log_det + jnp.log(self.tail_scale(z_head)).sum()

    def transform_and_log_det(
        self, z: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Scalar, Scalar]:
        """Return x = f(z), the sign of det J, and log|det J|."""
        return self(z), *self.log_det(z)

    def transform_and_log_prob(
        self, z: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Scalar, Scalar]:
        """Return x = f(z), log q(x) = log N(z; 0, I) − log|det J| (Eq. 1), and the sign of det J."""
        x, sign, log_det = self.transform_and_log_det(z)
        return x, log_standard_normal(z) - log_det, sign

    def log_prob(self, x: Float[Array, " d"]) -> Scalar:
        """Return log q at a given x, by the exact inverse.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the inverse has no closed form.
        """
        z = self.inverse(x)
        return log_standard_normal(z) - self.log_det(z)[1]


class Generator(ABC):
    """A specification of a generator: subclass it and decorate the subclass with `gpvi.specs.spec`.

    Pass it as `generator=` to `gpvi.GPVI` or an amortised method.

    Examples
    --------
    >>> isinstance(gpvi.generators.Residual(latent=8), gpvi.generators.Generator)
    True
    """

    @abstractmethod
    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> AbstractGenerator:
        """Build the map with its initial parameters. Posteriors are whitened, so it should start near the identity.

        Parameters
        ----------
        dim
            The dimension d of the target.
        key
            A JAX key.
        dtype
            The dtype of the parameters.

        Returns
        -------
        AbstractGenerator
            The map. The shapes of its arrays must depend on nothing but `dim` and the specification.
        """

    def choices(self, dim: int) -> str:
        """Describe the generator for a target of `dim` dimensions, for the progress bar; "" if there is nothing."""
        return ""


class Head(AbstractGenerator):
    """The head of a generator as a generator on R^k, whose Jacobian is A.

    Parameters
    ----------
    generator
        The generator.

    Examples
    --------
    >>> generator = gpvi.generators.Triangular(latent=2).build(5, key=key, dtype="float32")
    >>> gpvi.generators.Head(generator).dim
    2
    """

    generator: AbstractGenerator

    @property
    def injective(self) -> bool:
        """False: a map can be injective while its head is not."""
        return False

    @property
    def dim(self) -> int:
        """k."""
        return self.generator.latent

    @property
    def constant_head(self) -> bool:
        """As the generator's."""
        return self.generator.constant_head

    def head(self, z_head):
        """Return x_head."""
        return self.generator.head(z_head)

    def head_jacobian(self, z_head):
        """Return A."""
        return self.generator.head_jacobian(z_head)

    def head_log_det(self, z_head):
        """Return the sign of det A, and log|det A|."""
        return self.generator.head_log_det(z_head)


def no_inverse(name: str) -> NotAvailableError:
    """Make the error for an f^{-1} that has no closed form."""
    return NotAvailableError(
        f"{name} has no exact inverse, so log q(x) at a given x is not available. "
        "Use sample_and_log_prob for the density of its own draws, or the generators Linear or Triangular."
    )
