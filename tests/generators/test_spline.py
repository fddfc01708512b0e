"""The spline couplings against FlowJAX's, their Jacobian, their inverse, and the derivative that is written out."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import perturbed
from gpvi.errors import InputError
from gpvi.generators import SplineFlow
from gpvi.generators.spline import _warp
from gpvi_paper.bench.cases import flows

pytestmark = pytest.mark.usefixtures("x64")

SPEC = SplineFlow(layers=2, knots=2, interval=2.0, width=4, depth=2, scale=0.7)
BINS = SPEC.knots + 1


def by_flowjax(dim) -> Any:
    """The same map from FlowJAX's parts, away from its start."""
    head = flows.by_flowjax(SPEC, dim, key=jax.random.key(3), dtype=jnp.float64)
    return perturbed(head, np.random.default_rng(dim), scale=0.5)


def converted(head):
    """Our head with the parameters of FlowJAX's."""
    return flows.converted(head, SPEC)


@functools.cache
def points(dim):
    """Inside and outside [−B, B], and on its ends."""
    z = 1.5 * np.random.default_rng(0).standard_normal((60, dim))
    z[:2] = [[SPEC.interval], [-SPEC.interval]]
    return jnp.asarray(z)


def values(head, z):
    """T, log|det T′| and T^{-1}."""
    return *jax.vmap(head.transform_and_log_det)(z), jax.vmap(head.inverse)(z)


@pytest.mark.parametrize("dim", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_equal_to_flowjax(dim):
    head = by_flowjax(dim)
    wanted, found = (eqx.filter_jit(values)(h, points(dim)) for h in (head, converted(head)))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-11, 1e-11)


def test_against_the_dense_jacobian(getkey):
    head: Any = SPEC.build(4, key=getkey(), dtype=jnp.float64)
    head = perturbed(head, np.random.default_rng(1), scale=0.5)

    @eqx.filter_jit
    @functools.partial(eqx.filter_vmap, in_axes=(None, 0))
    def described(head, z):
        x, log_det = head.transform_and_log_det(z)
        return log_det, head.inverse(x), jax.jacrev(head)(z), head.jacobian(z).as_matrix()

    log_det, inverse, backward, forward = described(head, points(4))
    signs, wanted = np.linalg.slogdet(backward)
    np.testing.assert_allclose(log_det, wanted, 1e-9, 1e-9)
    np.testing.assert_array_equal(signs, head.orientation)
    rounding = (
        1e-12 * np.linalg.cond(backward).max()
    )  # what an exact inverse makes of the rounding of x
    np.testing.assert_allclose(inverse, points(4), rtol=0, atol=rounding)
    np.testing.assert_allclose(forward, backward, 1e-9, 1e-9)


def test_the_derivative_that_is_written_out(getkey):
    """Against automatic differentiation of the same function, for a direction in all of its inputs."""
    size, bins = 4, 3
    inputs = jax.random.normal(getkey(), (2, (3 * bins + 4) * size))
    ones = jnp.ones(2 * size)

    @jax.jit
    def derivatives(at, along):
        def of(warp):
            return jax.jvp(lambda v: warp(v[size:], 2 * v[:size], ones, 2.0), (at,), (along,))

        return of(_warp), of(_warp.fun)

    for got, want in zip(*map(jax.tree.leaves, derivatives(*inputs)), strict=True):
        np.testing.assert_allclose(got, want, 1e-11, 1e-11)


@eqx.filter_jit
def loss(head, z):
    """E½‖T(z)‖² − log|det T′|."""
    x, log_det = jax.vmap(head.transform_and_log_det)(z)
    return (0.5 * x**2).sum(1).mean() - log_det.mean()


def test_starts_at_a_scaled_permutation(getkey):
    head = SPEC.build(3, key=getkey(), dtype=jnp.float64)
    wanted = 0.5 * SPEC.scale**2 * (points(3) ** 2).sum(1).mean() - 3 * np.log(SPEC.scale)
    np.testing.assert_allclose(loss(head, points(3)), wanted, 1e-12)


def test_extreme_parameters_stay_finite_in_single_precision(getkey):
    with jax.enable_x64(False):
        head = SPEC.build(2, key=getkey(), dtype=jnp.float32)
        output = 100 * jax.random.normal(getkey(), head.output.shape)
        head = eqx.tree_at(lambda h: h.output, head, output)
        gradient = eqx.filter_grad(loss)(head, jax.random.normal(getkey(), (50, 2)))
    found = jax.tree.leaves(gradient)
    assert {leaf.dtype for leaf in found} == {np.dtype("float32")}
    assert all(np.isfinite(leaf).all() for leaf in found)


def test_points_stay_on_the_last_axis(getkey):
    """What the speed rests on: between matrix products `jax.vmap` moves no axis of anything larger than the points."""
    n, dim = 64, 4
    head = SPEC.build(dim, key=getkey(), dtype=jnp.float64)
    program = jax.make_jaxpr(jax.vmap(head.transform_and_log_det))(jnp.zeros((n, dim)))

    def equations(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)

    found = list(equations(program.jaxpr))
    moved = [e.outvars[0].aval.size for e in found if e.primitive.name == "transpose"]
    assert max(moved, default=0) <= n * (dim + 1)
    shapes = [e.outvars[0].aval.shape for e in found if e.primitive.name == "exp"]
    assert {shape[-1] for shape in shapes if n in shape} == {n}


def test_bins_must_fit():
    with pytest.raises(
        InputError, match=r"9 bins of width ≥ 0.001 do not fit in \(−0.001, 0.001\)"
    ):
        SplineFlow(interval=1e-3)
