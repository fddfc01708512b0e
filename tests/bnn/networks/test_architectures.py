"""The built-in networks."""

import jax
import jax.numpy as jnp
import numpy as np

from gpvi import bnn

KEY = jax.random.key(0)


def test_sizes_of_the_paper():
    assert bnn.mlp((2, 10, 10, 4)).size == 184
    assert bnn.mlp((2, 10, 10, 2)).size == 162
    assert bnn.lenet5().size == 61_706


def test_built_in_networks_are_values():
    assert bnn.mlp((2, 3)) == bnn.mlp((2, 3))
    assert hash(bnn.lenet5()) == hash(bnn.lenet5())
    assert bnn.mlp((2, 3)) != bnn.mlp((2, 3), "tanh")


def test_many_layers_stay_in_order():
    network = bnn.mlp((1, *range(2, 14), 1), "identity")
    assert [leaf.shape[0] for leaf in network.leaves if leaf.kind == "weight"] == [*range(1, 14)]
    assert network.outputs(jnp.ones((1, 1))) == 1


def test_lenet5_equals_its_layers_by_xla():
    """Against XLA's own convolution and pooling."""
    network, x = bnn.lenet5(classes=3, side=12), jax.random.normal(KEY, (2, 12, 12, 1))
    flat = network.init(KEY)
    p = network.unravel(flat)
    h = x
    for name, padding in (("conv0", "SAME"), ("conv1", "VALID")):
        h = jax.lax.conv_general_dilated(
            h, p[name]["weight"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        h = jax.lax.reduce_window(
            h + p[name]["bias"], -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        h = jax.nn.relu(h)
    h = h.reshape(2, -1)
    for name in ("dense0", "dense1"):
        h = jax.nn.relu(h @ p[name]["weight"] + p[name]["bias"])
    expected = h @ p["dense2"]["weight"] + p["dense2"]["bias"]
    np.testing.assert_allclose(jax.jit(network.apply)(flat, x), expected, atol=1e-5)
