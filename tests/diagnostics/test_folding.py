"""The fold fraction: orientation means nothing, a change of it is a fold, and zero proves no injectivity."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import Shape, built, conditioned, perturbed
from gpvi.diagnostics.folding import fold_fraction
from gpvi.generators import AbstractGenerator, SplineFlow, Triangular
from gpvi.generators.gaussian import LinearMap

pytestmark = pytest.mark.usefixtures("x64")


class AllHead(AbstractGenerator):
    """A map R^d → R^d without a tail."""

    dim: int = 2
    injective: ClassVar[bool] = False

    @property
    def latent(self):
        return self.dim

    @property
    def constant_head(self):
        return False

    def tail(self, z_head, z_tail):
        return z_tail

    def tail_scale(self, z_head):
        return z_head[:0]


class Fold(AllHead):
    """x₁ = z₁² + z₁: det J = 2z₁ + 1 turns negative left of −½."""

    def head(self, z_head):
        return z_head.at[0].add(z_head[0] ** 2)


class Wrap(AllHead):
    """(z₁, z₂) ↦ e^{z₁}(cos 4z₂, sin 4z₂): det J = 4e^{2z₁} > 0, yet z₂ and z₂ + π/2 meet."""

    def head(self, z_head):
        return jnp.exp(z_head[0]) * jnp.stack([jnp.cos(4 * z_head[1]), jnp.sin(4 * z_head[1])])


def signs_of(generator, z):
    """As the generator states them, and as its dense Jacobian has them."""
    stated, _ = jax.jit(jax.vmap(generator.log_det))(z)
    dense = np.linalg.slogdet(np.asarray(jax.jit(jax.vmap(jax.jacfwd(generator)))(z)))[0]
    np.testing.assert_array_equal(stated, dense)
    return stated


jitted = jax.jit(fold_fraction)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([-1.0, 0.0, 1.0, float("nan")]), min_size=6, max_size=6), st.randoms()
)
def test_share_that_differs_from_the_majority(signs, random):
    """A singular J (sign 0 or NaN) belongs to no orientation, so it always differs."""
    majority = max((1.0, -1.0), key=signs.count)
    expected = sum(sign != majority for sign in signs) / 6
    shuffled = random.sample(signs, 6)
    assert jitted(jnp.asarray(signs)) == pytest.approx(expected)
    assert jitted(-jnp.asarray(signs)) == pytest.approx(expected)
    assert jitted(jnp.asarray(shuffled)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["linear", "affine-conditional"])
def test_zero_for_injective_generators(kind, getkey):
    rng = np.random.default_rng(3)
    shape = Shape(3, 2, (4,))
    generator = conditioned(perturbed(built(kind, shape), rng), "diagonal", rng)
    assert fold_fraction(signs_of(generator, jax.random.normal(getkey(), (50, 3)))) == 0


def test_zero_for_a_reflection(getkey):
    generator = LinearMap(jnp.diag(jnp.asarray([-1.0, 2.0, 3.0])), jnp.zeros(3))
    signs = signs_of(generator, jax.random.normal(getkey(), (50, 3)))
    np.testing.assert_array_equal(signs, -1)
    assert fold_fraction(signs) == 0


def test_zero_for_a_spline_that_reflects(getkey):
    """In two dimensions each layer swaps the coordinates, so an odd number of them is a reflection."""
    head = SplineFlow(layers=1, knots=3, width=4)
    generator = Triangular(head=head).build(2, key=getkey(), dtype=jnp.float64)
    generator = perturbed(generator, np.random.default_rng(0))
    signs = signs_of(generator, jax.random.normal(getkey(), (50, 2)))
    np.testing.assert_array_equal(signs, -1)
    assert fold_fraction(signs) == 0


def test_a_fold_is_counted(getkey):
    z = jax.random.normal(getkey(), (400, 2))
    share = fold_fraction(signs_of(Fold(), z))
    assert share == pytest.approx(np.mean(z[:, 0] < -0.5))
    assert 0.2 < share < 0.4


def test_a_wrap_is_not_seen(getkey):
    z = jax.random.normal(getkey(), (400, 2))
    assert fold_fraction(signs_of(Wrap(), z)) == 0
    np.testing.assert_allclose(Wrap()(z[0]), Wrap()(z[0].at[1].add(np.pi / 2)), rtol=1e-12)
