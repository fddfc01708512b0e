r"""Mixtures of generators: x = f_c(z) with c ~ Categorical(w), one component for each separated mode.

One continuous map of R^d cannot hold separated modes: draws lie on filaments between them. Each component is a
generator of its own, in coordinates whitened by its own mode. Its density follows from its exact inverse, and that of
the mixture is

    log q(x) = log Σ_c w_c q_c(x),   log q_c(x) = log N(z_c; 0, I) − log|det J_c(z_c)|,   z_c = f_c^{-1}(x).

A draw has one component but the density of all. The components have one structure, so that their arrays are stacked,
and what has to be done for each of them is done by one loop in one program.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.scipy.special import logsumexp
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi.errors import NotAvailableError
from gpvi.generators.base import AbstractGenerator, Generator
from gpvi.generators.gaussian import FullRank
from gpvi.generators.noise import standard_normal
from gpvi.generators.preconditioned import Preconditioned
from gpvi.specs import require_count, require_instance, spec
from gpvi.targets.coordinates import Affine


class MixtureMap(AbstractGenerator):
    """K generators in coordinates of their own, and their weights. Its noise is a pair: the number c, and z.

    Parameters
    ----------
    generators
        f_1, …, f_K, stacked: every array has a first axis of K.
    affines
        The coordinates x = location_c + L_c u of each, stacked; they are not trained.
    log_weights
        log w, up to a constant.
    """

    generators: AbstractGenerator
    affines: Affine
    log_weights: Float[Array, " k"]

    @property
    def dim(self) -> int:
        """d."""
        return self.affines.location.shape[-1]

    @property
    def injective(self) -> bool:
        """Whether every component is."""
        return self.generators.injective

    @property
    def normalised(self) -> Float[Array, " k"]:
        """log w, so that the weights sum to one."""
        return jax.nn.log_softmax(self.log_weights)

    def component(self, c: int | Int[Array, ""]) -> Preconditioned:
        """Return component c as a generator; `c` may be traced."""
        arrays, static = eqx.partition(self._stacked, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda leaf: leaf[c], arrays), static)

    def each(self, of: Callable[[Preconditioned, PyTree], Any], *arguments: PyTree) -> Any:
        """Return `of(component_c, *arguments_c)` of all components, side by side."""
        arrays, static = eqx.partition(self._stacked, eqx.is_array)
        return jax.vmap(lambda own, *a: of(eqx.combine(own, static), *a))(arrays, *arguments)

    def noise(self, n, *, key):
        """Draw n components c by their weights, and z ~ N(0, I) for each."""
        which, z_key = jax.random.split(key)
        c = jax.random.categorical(which, self.log_weights, shape=(n,))
        return c, standard_normal(self, n, key=z_key)

    def split(self, z: Any):
        """Return all of the noise, and an empty tail."""
        return z, z[1][:0]

    def __call__(self, z: Any):
        """Return f_c(z)."""
        return self.head(z)

    def head(self, z_head: Any):
        """Return f_c(z)."""
        c, z = z_head

        def chosen(x: Array, at: tuple[Array, AbstractGenerator]) -> tuple[Array, None]:
            number, component = at
            return jnp.where(number == c, component(z), x), None

        return self._over_components(chosen, jnp.zeros_like(z))[0]

    def tail_scale(self, z_head: Any):
        """Return an empty array: there is no tail."""
        return z_head[1][:0]

    def head_jacobian(self, z_head: Any):
        """Return ∂f_c/∂z."""
        c, z = z_head
        return lx.MatrixLinearOperator(jax.jacfwd(self.component(c))(z))

    def head_log_det(self, z_head: Any):
        """Return the sign of det ∂f_c/∂z, and its log|det|."""
        return self.log_det(z_head)

    def log_det(self, z: Any):
        """Return the sign of det ∂f_c/∂z, and its log|det|, which say nothing of the other components."""
        c, own = z
        return self.component(c).log_det(own)

    def transform_and_log_det(self, z: Any):
        """Return f_c(z), and the sign and log|det| of its own Jacobian."""
        return self(z), *self.log_det(z)

    def transform_and_log_prob(self, z: Any):
        """Return x = f_c(z), log q(x) over all components, and 1: no component folds."""
        x = self(z)
        log_q = self.log_prob(x)
        return x, log_q, jnp.ones_like(log_q)

    def inverse(self, x):
        """Refuse: several z lead to an x."""
        raise NotAvailableError(
            "A mixture reaches an x from each of its components, so it has no inverse. Use log_prob, or the inverse "
            "of a component(c)."
        )

    def log_prob(self, x):
        """Return log Σ_c w_c q_c(x)."""
        return logsumexp(self.normalised + self.component_log_probs(x))

    def component_log_probs(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        """Return log q_c(x) of every component."""

        def one(_: None, at: tuple[Array, AbstractGenerator]) -> tuple[None, Scalar]:
            return None, at[1].log_prob(x)

        return self._over_components(one, None)[1]

    @property
    def _stacked(self) -> Preconditioned:
        return Preconditioned(self.generators, jax.lax.stop_gradient(self.affines))

    def _over_components(self, body: Callable, start: PyTree) -> tuple[PyTree, PyTree]:
        """Scan over the components: a batch of draws needs the memory of one of them only."""
        arrays, static = eqx.partition(self._stacked, eqx.is_array)

        def step(carry: PyTree, at: tuple[Array, PyTree]) -> tuple[PyTree, PyTree]:
            number, own = at
            return body(carry, (number, eqx.combine(own, static)))

        return jax.lax.scan(step, start, (jnp.arange(len(self.log_weights)), arrays))


@spec
class Mixture(Generator):
    """A mixture of generators, one for each separated mode, with exact densities.

    `gpvi.fit` makes one by itself where exploration finds several modes that a single generator does not hold.

    Parameters
    ----------
    components
        Their number K.
    component
        The specification that all of them share: injective and with an exact inverse, such as `FullRank` or
        `Triangular`.

    Examples
    --------
    >>> mixture = gpvi.generators.Mixture(3, gpvi.generators.FullRank())
    >>> generator = mixture.build(2, key=key, dtype="float32")
    >>> c, z = generator.noise(5, key=key)
    >>> c.shape, z.shape, jax.vmap(generator)((c, z)).shape
    ((5,), (5, 2), (5, 2))
    """

    components: int = 2
    component: Generator = FullRank()

    def __post_init__(self):
        require_count("components", self.components, "Give one for each mode.")
        require_instance("component", self.component, Generator)
        if isinstance(self.component, Mixture):
            raise NotAvailableError(
                "component is a mixture itself: give the total number of components at once."
            )

    def choices(self, dim: int) -> str:
        """Describe the mixture."""
        kind = self.component.choices(dim) or type(self.component).__name__
        return f"a mixture of {self.components} components, each {kind}"

    def build(self, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> MixtureMap:
        """Build the mixture with K equally heavy components, each around a standard normal draw."""
        build_key, place_key = jax.random.split(key)
        keys = jax.random.split(build_key, self.components)
        generators = eqx.filter_vmap(lambda own: self.component.build(dim, key=own, dtype=dtype))(
            keys
        )
        if not generators.injective:
            raise NotAvailableError(
                f"the components are {self.component}, which may fold, so that the density of a mixture would be "
                "wrong. Use FullRank or Triangular."
            )
        places = jax.random.normal(place_key, (self.components, dim), dtype)
        affines = jax.vmap(lambda place: Affine(place, jnp.eye(dim, dtype=dtype)))(places)
        return MixtureMap(generators, affines, jnp.zeros(self.components, dtype))
