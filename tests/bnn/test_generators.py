"""Generators and GPVI for networks."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpvi import bnn, fit
from gpvi.errors import InputError
from gpvi.generators import AffineFlow, SplineFlow, Triangular
from gpvi.targets.coordinates import Affine, Whitened
from selection import slow

KEY = jax.random.key(0)


GIB = 2**30


def test_a_target_serves_in_place_of_its_dim():
    target = bnn.target(bnn.mlp((3, 1)), "gaussian", "fan-in", np.ones((4, 3)), np.ones(4))
    assert bnn.method(target) == bnn.method(target.dim)
    assert bnn.generator(target, latent=2) == bnn.generator(target.dim, latent=2)


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (AffineFlow(0.05), "conditional"),
        slow(SplineFlow(2, 3, width=4, scale=0.05), "constant"),
    ],
    ids=["affine", "spline"],
)
def test_a_factorised_last_layer(head, form):
    """W = U V has rank 2, the map stays injective with its density, and starts at the given scale."""
    spec = Triangular(4, head, (7,), scale=0.05, scale_form=form, rank=2)
    with jax.enable_x64(True):
        generator = spec.build(30, key=KEY, dtype=jnp.float64)
        assert generator.network is not None
        assert generator.network.output.weight.shape == (26, 2)
        z = jax.random.normal(jax.random.key(1), (200, 30), jnp.float64)
        x, _, log_det = jax.vmap(generator.transform_and_log_det)(z)
        np.testing.assert_allclose(jax.vmap(generator.inverse)(x), z, atol=1e-8)
        dense = jnp.linalg.slogdet(jax.jacfwd(generator)(z[0]))[1]
        np.testing.assert_allclose(dense, log_det[0], rtol=1e-8)
        np.testing.assert_allclose(np.abs(np.asarray(x[:, :4])).std(0), 0.03, atol=0.01)
        g = jax.vmap(lambda h: generator.tail(h, jnp.zeros(26)))(z[:, :4])
        bias = generator.network.output.bias
        assert bias is not None
        singular = np.linalg.svd(g - bias, compute_uv=False)
        assert singular[1] > 1e-3
        assert singular[2] < 1e-10


def test_rules_by_size():
    small, large = bnn.generator(184), bnn.generator(61_706)
    assert (small.latent, small.rank, small.scale) == (64, None, 0.05)
    assert large.rank is not None and large.scale < small.scale
    assert bnn.generator(3).latent == 1
    assert bnn.generator(1).latent == 1
    assert bnn.generator(100, latent=5, rank=2, scale=0.1, hidden=(3,)) == Triangular(
        5, AffineFlow(0.1), (3,), "gelu", scale=0.1, scale_form="conditional", rank=2
    )
    assert bnn.method(10**7).particles == 4
    assert isinstance(bnn.generator(184, head="spline").head, SplineFlow)
    assert bnn.method(184, head="spline").generator == bnn.generator(184, head="spline")
    with pytest.raises(InputError, match="rank"):
        bnn.generator(100, rank=0)
    with pytest.raises(InputError, match="dim"):
        bnn.generator(0)


@pytest.mark.parametrize(
    ("network", "shape", "limit"),
    [
        slow(bnn.lenet5(), (28, 28, 1), 4.0),
        slow(bnn.mlp((784, 800, 462, 10)), (784,), 4.0),
    ],
    ids=["LeNet-5", "a million weights"],
)
def test_a_step_fits_in_memory(network, shape, limit):
    """Compiled, not run: arguments, results and scratch of a step with a batch of 100."""
    with jax.enable_x64(False):
        method, optimizer = bnn.method(network.size), optax.adam(1e-3)
        X, y = np.zeros((100, *shape), np.float32), np.zeros(100, int)
        target = bnn.target(network, "categorical", "normal", X, y)
        density = Whitened(target, Affine.identity(target.dim, target.dtype))
        state = eqx.filter_eval_shape(lambda: method.init(density, optimizer, key=KEY))
        arrays, static = eqx.partition(state, lambda a: isinstance(a, jax.ShapeDtypeStruct))

        def step(arrays, batch, key):
            moved, _ = method.step(density, optimizer, eqx.combine(arrays, static), batch, key=key)
            return eqx.filter(moved, eqx.is_array)

        program = jax.jit(step, donate_argnums=0).lower(arrays, target.data, KEY).compile()
    memory = program.memory_analysis()
    assert memory is not None
    parts = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
    assert parts < limit * GIB


def four_classes(n, rng):
    """The paper's mixture: N(μ, 0.3 I) around (±2, ±2)."""
    centres = np.array([(-2, -2), (-2, 2), (2, -2), (2, 2)])
    y = rng.integers(0, 4, n)
    return centres[y] + math.sqrt(0.3) * rng.standard_normal((n, 2)), y


@pytest.mark.slow
@pytest.mark.parametrize(("gradient", "bound"), [("pathwise", -72.0), ("functional", -78.0)])
def test_four_classes(gradient, bound):
    """Nearly all classified, unsure far from the data, and an ELBO above a mean-field posterior's −78."""
    rng = np.random.default_rng(0)
    (X, y), (X_test, y_test) = four_classes(100, rng), four_classes(200, rng)
    network = bnn.mlp((2, 10, 10, 4))
    target = bnn.target(network, "categorical", "normal", X, y)
    method = bnn.method(target.dim, gradient=gradient)
    posterior = fit(target, method, key=KEY, steps=4_000, progress=False)
    own = bnn.Predictive(posterior, network, "categorical")
    found = own.predict(X_test, key=KEY)
    assert (found.mean.argmax(1) == y_test).mean() >= 0.985
    far = own.predict(np.array([[0.0, 9.0], [9.0, 0.0], [-9.0, 0.0], [0.0, -9.0]]), key=KEY)
    assert far.mutual_information is not None and found.mutual_information is not None
    assert far.mutual_information.mean() > 5 * np.median(found.mutual_information)
    assert posterior.diagnose(key=KEY).elbo > bound
