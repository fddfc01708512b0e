"""A function that reads beyond the end of its point is found; one that does not is left in peace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpvi
from gpvi.errors import InputError
from gpvi.targets._indexing import index_out_of_range

MATRIX = np.eye(3)


@given(st.integers(-6, 6), st.integers(1, 4))
def test_whole_numbers_are_bounded_as_in_python(index, dim):
    inside = -dim <= index < dim
    assert index_out_of_range(lambda x: x[index], dim, "float32") == (None if inside else index)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -0.5 * (x**2).sum() - x[1] * x[2],
        lambda x: -x @ MATRIX @ x,
        lambda x: (MATRIX @ x).sum() + (2 - x).sum() / (x + x).sum(),
        lambda x: jnp.stack([x[0], x[-1]]).sum(),
        lambda x: jax.vmap(jnp.sin)(x[:2]).sum(),
        lambda x: jax.lax.scan(lambda c, v: (c + v, None), 0.0, x)[0],
        lambda x: sum(v for v in x),
        lambda x: jnp.linalg.norm(x) + len(x) + x.shape[0],
        lambda x: jax.grad(lambda y: (y * x).sum())(x)[2],
    ],
)
def test_ordinary_functions_pass(function):
    assert index_out_of_range(function, 3, "float32") is None


def test_a_wrong_dimension_is_refused_before_it_gives_a_wrong_posterior():
    target = gpvi.Target(lambda x: -0.5 * (x[0] ** 2 + x[1] ** 2 + x[2] ** 2), dim=2)
    with pytest.raises(InputError, match=r"reads coordinate 2 of a point with 2.*Check dim=2"):
        gpvi.fit(target, key=jax.random.key(0), progress=False)
