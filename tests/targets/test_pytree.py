"""Pytrees as flat vectors: names, structure, batches, and every refusal."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi import Target
from gpvi.errors import InputError

Y = np.random.default_rng(1).standard_normal(5)


def points(target, n=3):
    return np.random.default_rng(7).standard_normal((n, target.dim))


TREE = {"layers": [{"w": np.ones((2, 2)), "b": np.zeros(2)}], "scale": 0.5}


def tree_log_density(tree):
    layer = tree["layers"][0]
    return -jnp.sum(layer["w"] ** 2) - 2 * jnp.sum(layer["b"] ** 2) - 3 * tree["scale"] ** 2


def test_a_pytree():
    target: Any = Target.from_pytree(tree_log_density, TREE, dtype="float64")
    assert target.names == (
        *(f"layers.0.b[{i}]" for i in range(2)),
        *(f"layers.0.w[{i},{j}]" for i in range(2) for j in range(2)),
        "scale",
    )
    np.testing.assert_array_equal(target.initial, [0, 0, 1, 1, 1, 1, 0.5])
    x = points(target)[0]
    with target.precision():
        value, tree = target.log_density(jnp.asarray(x)), target.model.constrain(jnp.asarray(x))
    weights = np.array([2, 2, 1, 1, 1, 1, 3])
    np.testing.assert_allclose(value, -(weights * x**2).sum(), rtol=1e-12)
    assert jax.tree.structure(tree) == jax.tree.structure(TREE)
    np.testing.assert_array_equal(tree["layers"][0]["w"], x[2:6].reshape(2, 2))


def test_a_pytree_in_batches():
    target = Target.from_pytree(
        None,
        {"mean": np.zeros(())},
        log_likelihood=lambda tree, y: -((y - tree["mean"]) ** 2),
        log_prior=lambda tree: -(tree["mean"] ** 2),
        data=Y,
        dtype="float64",
    )
    with target.precision():
        x = jnp.asarray([0.3])
        batches = target.data.reshape(5, 1)
        values = [target.log_density(x, batch) for batch in batches]
        whole = target.log_density(x)
    np.testing.assert_allclose(np.mean(values), whole, rtol=1e-12)
    np.testing.assert_allclose(whole, -((Y - 0.3) ** 2).sum() - 0.09, rtol=1e-12)
    assert target.names == ("mean",)


def test_a_bare_array_is_a_tree():
    assert Target.from_pytree(lambda x: -jnp.sum(x**2), np.zeros((1, 2))).names == (
        "x[0,0]",
        "x[0,1]",
    )


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"w": np.zeros(2), "n": np.arange(3)}, r"example\['n'\] has dtype int64.*close over it"),
        ({"on": True}, r"example\['on'\] has dtype bool"),
        ({"z": np.zeros(2, complex)}, "dtype complex128"),
        ({}, "holds no numbers"),
        ({"empty": np.zeros((0, 3))}, "holds no numbers"),
    ],
)
def test_trees_that_are_refused(example, message):
    with pytest.raises(InputError, match=message):
        Target.from_pytree(lambda tree: jnp.zeros(()), example)
