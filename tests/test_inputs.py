"""Numbers are refused where JAX would make others of them."""

import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi._inputs import cast_in_range, require_finite
from gpvi.errors import InputError


def of_data(data, **options):
    def log_likelihood(x, batch):
        return -0.5 * (batch / 1e9 - x[0]) ** 2

    return gpvi.Target(log_likelihood=log_likelihood, data=data, dim=1, **options)


@pytest.mark.parametrize("as_data", [np.asarray, gpvi.Stream], ids=["array", "stream"])
@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.array([1, 5_000_000_000]), "5000000000, which int32"),
        (np.array([3, -(2**40)]), "-1099511627776, which int32"),
        (np.array([0, 2**40], np.uint64), "1099511627776, which uint32"),
        (np.array([1.0, 1e39]), "1e[+]39, which float32"),
    ],
    ids=["int64", "negative", "uint64", "float64"],
)
def test_numbers_beyond_the_type_that_holds_them_are_refused(as_data, values, found):
    with pytest.raises(InputError, match=found):
        of_data(as_data(values)).check()


def test_the_remedy_is_one():
    values = np.array([3_000_000_000, 5_000_000_000])
    for given in (of_data(values, dtype="float64"), of_data(values.astype(float))):
        with given.precision():
            log_density = given.log_density(jnp.array([4.0], given.dtype))
        np.testing.assert_allclose(log_density, -1.0, rtol=1e-6)


@pytest.mark.parametrize("as_data", [np.asarray, gpvi.Stream], ids=["array", "stream"])
def test_numbers_of_another_byte_order_are_the_same_numbers(as_data):
    values = np.array([1e9, 2e9, 4e9])
    own, foreign = of_data(values), of_data(as_data(values.astype(">f8")))
    x = jnp.array([1.5])
    np.testing.assert_allclose(foreign.log_density(x), own.log_density(x))


@pytest.mark.parametrize("values", [np.array(["a", "b"]), np.array([1j, 2])], ids=str)
def test_what_is_no_number_is_refused_by_its_type(values):
    with pytest.raises(InputError, match="holds no numbers"):
        of_data(values)


def test_what_can_be_held_is_kept():
    np.testing.assert_array_equal(
        cast_in_range(np.array([2**31 - 1]), np.dtype("int32")), 2**31 - 1
    )
    kept = cast_in_range(np.array([0.1, 3e38]), np.dtype("float32"))
    np.testing.assert_array_equal(kept, np.array([0.1, 3e38], np.float32))
    require_finite(np.array([True, False]), "data")
    require_finite(np.asarray(jnp.ones(2, jnp.bfloat16)), "data")
