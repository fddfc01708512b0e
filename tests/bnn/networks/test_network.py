"""Networks as functions of a flat vector."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi import bnn
from gpvi.errors import InputError

KEY = jax.random.key(0)


class Module(eqx.Module):
    """A small Equinox network with a layer that is neither Linear nor Conv."""

    convolution: eqx.nn.Conv2d
    norm: eqx.nn.LayerNorm
    dense: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.convolution = eqx.nn.Conv2d(2, 3, 3, key=first)
        self.norm = eqx.nn.LayerNorm(12)
        self.dense = eqx.nn.Linear(12, 2, key=second)

    def __call__(self, x):
        return self.dense(self.norm(jnp.tanh(self.convolution(x)).ravel()))


class WithBatchNorm(eqx.Module):
    norm: eqx.nn.BatchNorm
    dense: eqx.nn.Linear

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        self.dense = eqx.nn.Linear(3, 1, key=key)


def pair():
    init = lambda key: {"w": jax.random.normal(key, (3, 2)), "b": jnp.zeros(2), "s": jnp.ones(())}  # noqa: E731
    return init, lambda p, x: p["s"] * (x @ p["w"] + p["b"])


NETWORKS = {
    "mlp": (lambda: bnn.mlp((3, 5, 2), "tanh"), (3,)),
    "equinox": (lambda: bnn.Network.from_equinox(Module), (2, 4, 4)),
    "equinox module": (lambda: bnn.Network.from_equinox(Module(KEY)), (2, 4, 4)),
    "functions": (lambda: bnn.Network.from_functions(*pair()), (3,)),
    "lenet5": (bnn.lenet5, (28, 28, 1)),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_flat_and_back(kind):
    make, shape = NETWORKS[kind]
    network = make()
    flat = jax.jit(network.init)(KEY)
    assert flat.shape == (network.size,)
    tree = jax.jit(network.unravel)(flat)
    np.testing.assert_array_equal(jax.jit(network.ravel)(tree), flat)
    for leaf, own in zip(network.leaves, jax.tree.leaves(tree), strict=True):
        assert own.shape == leaf.shape
        np.testing.assert_array_equal(
            np.asarray(flat)[leaf.start : leaf.stop], np.asarray(own).ravel()
        )
    assert network.leaves[0].start == 0
    assert len(set(network.names)) == len(network.names) == network.size
    x = jnp.ones((4, *shape))
    assert jax.eval_shape(network.apply, flat, x).shape == (4, network.outputs(x))


def test_fan_in():
    by_name = {leaf.name: leaf.fan_in for leaf in bnn.Network.from_equinox(Module).leaves}
    assert by_name["convolution.weight"] == by_name["convolution.bias"] == 2 * 3 * 3
    assert by_name["dense.weight"] == 12
    assert by_name["norm.bias"] == 1
    by_name = {leaf.name: leaf.fan_in for leaf in bnn.lenet5().leaves}
    assert by_name["conv1.weight"] == by_name["conv1.bias"] == 5 * 5 * 6
    assert by_name["dense0.weight"] == 400


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bnn.mlp((2,)), "at least two widths"),
        (lambda: bnn.mlp((2, 0, 1)), "widths ≥ 1"),
        (lambda: bnn.mlp((2, 1), "rleu"), "Did you mean 'relu'"),
        (lambda: bnn.lenet5(side=8), "at least 12"),
        (lambda: bnn.Network.from_equinox(WithBatchNorm(KEY)), "BatchNorm.*LayerNorm"),
        (
            lambda: bnn.Network.from_equinox(eqx.nn.Sequential([eqx.nn.Dropout(0.5)])),
            "Dropout.*inference_mode",
        ),
        (lambda: bnn.Network.from_equinox(eqx.nn.Identity()), "no weights.*trainable"),
        (lambda: bnn.Network.from_equinox(lambda key: (1, 2)), "not an Equinox module"),  # pyright: ignore
        (
            lambda: bnn.Network.from_functions(lambda key: {"i": jnp.arange(3)}, pair()[1]),
            "int32|int64",
        ),
        (lambda: bnn.mlp((2, 1)).apply(jnp.zeros(5), jnp.ones((1, 2))), "3 weights"),
        (
            lambda: bnn.Network.from_functions(lambda: jnp.ones((2, 1)), pair()[1]),  # pyright: ignore
            r"called as init\(key\): too many positional arguments",
        ),
        (
            lambda: bnn.Network.from_equinox(lambda: Module(KEY)),
            r"called as the function\(key\)",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("apply", "said", "advised"),
    [
        (lambda p, x: x @ p, "contracting dimensions", True),
        (lambda p, x: x @ p["w"], "string index", False),
        (lambda p, x: np.asarray(x) @ p, "on traced array with shape", False),
        (lambda p, x: (x, p), "gives tuple; it must give one array", False),
    ],
)
def test_a_network_that_fails_is_quoted(apply, said, advised):
    network = bnn.Network.from_functions(lambda key: jnp.ones((2, 1)), apply)
    with pytest.raises(InputError, match=said) as caught:
        network.outputs(np.ones((5, 3)))
    assert ("Check the number of features" in str(caught.value)) == advised
