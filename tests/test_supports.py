"""Supports of unknowns: bijections whose Jacobians automatic differentiation and NumPyro confirm."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gpvi
from gpvi.errors import InputError
from gpvi.supports import Above, Below, Interval, Ordered, Positive, Real, Simplex, Supports

pytestmark = pytest.mark.usefixtures("x64")

SUPPORTS = [
    Real(),
    Real((2, 2)),
    Positive(3),
    Above(-1.5, 2),
    Below(4.0),
    Interval(-1.0, 3.0, (2,)),
    Simplex(2),
    Simplex(5),
    Simplex(3, (2,)),
    Ordered(1),
    Ordered(4),
    Ordered(3, 2),
]
constraints: Any = dist.constraints
TRANSFORMS = [
    (Positive(), constraints.positive),
    (Above(-1.5), constraints.greater_than(-1.5)),
    (Below(4.0), constraints.less_than(4.0)),
    (Interval(-1.0, 3.0), constraints.interval(-1.0, 3.0)),
    (Simplex(5), constraints.simplex),
    (Ordered(4), constraints.ordered_vector),
]
norm: Any = stats.norm


def points(support, seed, scale):
    return jnp.asarray(np.random.default_rng(seed).normal(size=support.free_shape) * scale)


def independent(support, x):
    """The entries that determine all others: of a simplex all but the last."""
    value = support.transform(x)
    return (value[..., :-1] if isinstance(support, Simplex) else value).ravel()


@settings(max_examples=40)
@given(st.sampled_from(SUPPORTS), st.integers(0, 10_000), st.sampled_from([0.1, 1.0, 4.0]))
def test_the_jacobian_is_that_of_automatic_differentiation(support, seed, scale):
    x = points(support, seed, scale)
    jacobian = jax.jacobian(lambda flat: independent(support, flat.reshape(x.shape)))(x.ravel())
    expected = jnp.linalg.slogdet(jacobian.reshape(x.size, x.size))[1]
    np.testing.assert_allclose(support.log_det(x), expected, rtol=1e-6, atol=1e-6)


@given(st.sampled_from(SUPPORTS), st.integers(0, 10_000))
def test_the_inverse_returns_where_the_value_came_from(support, seed):
    x = points(support, seed, 2.0)
    value = support.transform(x)
    assert value.shape == support.value_shape
    np.testing.assert_allclose(support.inverse(value), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("support", "constraint"), TRANSFORMS, ids=lambda each: type(each).__name__
)
def test_values_and_jacobians_are_those_of_numpyro(support, constraint):
    x = points(support, 3, 1.0)
    transform = dist.transforms.biject_to(constraint)
    value = transform(x)
    np.testing.assert_allclose(support.transform(x), value, rtol=1e-6)
    expected = np.sum(transform.log_abs_det_jacobian(x, value))
    np.testing.assert_allclose(support.log_det(x), expected, rtol=1e-6)


@pytest.mark.slow
def test_far_out_nothing_overflows():
    for support in SUPPORTS:
        for end in (-30.0, 30.0):
            x = jnp.full(support.free_shape, end, jnp.float32)
            gradient = jax.grad(lambda x, support=support: support.log_det(x))(x)
            assert np.isfinite(support.transform(x)).all()
            assert np.isfinite(support.log_det(x))
            assert np.isfinite(gradient).all()
    np.testing.assert_allclose(Simplex(4).transform(jnp.array([40.0, -40.0, 3.0])).sum(), 1)


def unknowns():
    return {"mean": "real", "sd": "positive", "mix": Simplex(3), "cuts": Ordered(2, 2)}


def test_several_unknowns_are_one_vector():
    both = Supports.of(unknowns())
    assert both.dim == 1 + 1 + 2 + 4
    assert both.names[:5] == ("mean", "sd", "mix[0]", "mix[1]", "cuts[0,0]")
    x = points(Real(both.dim), 0, 1.0)
    values = both.constrain(x)
    assert {name: value.shape for name, value in values.items()} == {
        "mean": (),
        "sd": (),
        "mix": (3,),
        "cuts": (2, 2),
    }
    np.testing.assert_allclose(both.unconstrain(values), x, atol=1e-9)
    parts = zip(both.supports, np.split(x, [1, 2, 4]), strict=True)
    expected = sum(s.log_det(jnp.asarray(p).reshape(s.free_shape)) for s, p in parts)
    np.testing.assert_allclose(both.log_det(x), expected)


def gamma(p):
    """Gamma(3, 2) beside Beta(2, 5)."""
    rate, share = p["rate"], p["share"]
    return 2 * jnp.log(rate) - 2 * rate + jnp.log(share) + 4 * jnp.log1p(-share)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_density_of_the_unknowns_is_the_one_that_was_written(temperature):
    """Integrated over x it is the integral over the supports, with no Jacobian left out or tempered."""
    target = gpvi.Target.from_supports(
        gamma, {"rate": "positive", "share": "unit"}, temperature=temperature
    )
    grid = jnp.linspace(-14.0, 14.0, 561)
    x = jnp.stack(jnp.meshgrid(grid, grid), -1).reshape(-1, 2)
    integral = np.exp(jax.vmap(target.log_density)(x)).sum() * float(grid[1] - grid[0]) ** 2
    shape, a, b = 2 / temperature + 1, 1 / temperature + 1, 4 / temperature + 1
    expected = math.gamma(shape) / (2 / temperature) ** shape
    expected *= math.gamma(a) * math.gamma(b) / math.gamma(a + b)
    np.testing.assert_allclose(integral, expected, rtol=1e-6)


def test_the_mini_batch_form_has_the_same_density():
    data = np.array([0.3, 1.2, 2.0])

    def log_likelihood(p, batch):
        return jnp.log(p["rate"]) - p["rate"] * batch

    def log_prior(p):
        return -p["rate"]

    def log_density(p):
        return log_likelihood(p, data).sum() + log_prior(p)

    supports = {"rate": "positive"}
    options = {"log_likelihood": log_likelihood, "data": data}
    whole = gpvi.Target.from_supports(log_density, supports)
    parts = gpvi.Target.from_supports(None, supports, log_prior=log_prior, **options)
    flat = gpvi.Target.from_supports(None, supports, **options)
    x = jnp.array([0.4])
    np.testing.assert_allclose(parts.log_density(x), whole.log_density(x))
    np.testing.assert_allclose(flat.log_density(x), whole.log_density(x) + jnp.exp(x[0]))


def test_training_starts_at_the_initial_values():
    supports = {"rate": "positive", "share": "unit"}
    target = gpvi.Target.from_supports(gamma, supports, initial={"share": 0.2})
    model: Any = target.model
    start = model.constrain(target.initial)
    np.testing.assert_allclose([start["rate"], start["share"]], [1.0, 0.2])


REFUSED = {
    "unknown support (of 'a') 'positiv'. Did you mean 'positive'": lambda: Supports.of(
        {"a": "positiv"}
    ),
    "supports is {}": lambda: Supports.of({}),
    "supports has the name ''": lambda: Supports.of({"": "real"}),
    "initial['rate'] is -1, outside of Positive(shape=()): it must be > 0": lambda: (
        gpvi.Target.from_supports(gamma, {"rate": "positive"}, initial={"rate": -1})
    ),
    "initial has 'rat', which is no unknown; there are rate": lambda: gpvi.Target.from_supports(
        gamma, {"rate": "positive"}, initial={"rat": 1}
    ),
    "initial['rate'] has shape (2,); it must be ()": lambda: gpvi.Target.from_supports(
        gamma, {"rate": "positive"}, initial={"rate": [1, 2]}
    ),
    "it must be positive with sum 1": lambda: Supports.of({"a": Simplex(2)}).unconstrain(
        {"a": [0.5, 0.6]}
    ),
    "it must be increasing": lambda: Supports.of({"a": Ordered(2)}).unconstrain({"a": [1, 0]}),
    "lower must be less than upper": lambda: Interval(1.0, 1.0),
    "lower is inf; it must be a finite number": lambda: Above(math.inf),
    "a simplex has a whole number ≥ 2": lambda: Simplex(1),
    "size is 0": lambda: Ordered(0),
    "shape is (0,)": lambda: Real((0,)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_mistakes_are_refused(words):
    with pytest.raises(InputError, match=re.escape(words)):
        REFUSED[words]()
