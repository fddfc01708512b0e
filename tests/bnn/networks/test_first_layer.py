"""The layers that inputs enter."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpvi import bnn

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


class Recurrent(eqx.Module):
    dense: eqx.nn.Linear
    cell: eqx.nn.GRUCell

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.dense = eqx.nn.Linear(4, 1, key=first)
        self.cell = eqx.nn.GRUCell(3, 4, key=second)

    def __call__(self, x):
        step = lambda state, one: (self.cell(one, state), None)  # noqa: E731
        return self.dense(jax.lax.scan(step, jnp.zeros(4), x)[0])


def test_the_first_layer_is_the_one_that_x_enters():
    """By their names the last layer would be the first."""
    shapes = {"w_in": (3, 5), "out": (5, 1)}
    init = lambda key: {name: {"w": jnp.ones(shape)} for name, shape in shapes.items()}  # noqa: E731

    def apply(own, x):
        return jax.nn.relu(x @ own["w_in"]["w"]) @ own["out"]["w"]

    network, x = bnn.Network.from_functions(init, apply), np.ones((4, 3))
    assert network.first_layers == network.for_inputs(np.ones((4, 2))).first_layers == ("out",)
    assert network.for_inputs(x).first_layers == ("w_in",)
    target = bnn.target(network, bnn.Gaussian(0.1), "sparse", x, np.zeros(4))
    at = jnp.zeros(20)
    known = bnn.Sparse().log_prob(at, network.for_inputs(x))
    likelihood = 4 * stats.norm.logpdf(0, scale=0.1)
    assert target.log_density(at) == pytest.approx(likelihood + float(known), rel=1e-5)
    assert abs(known - bnn.Sparse().log_prob(at, network)) > 1


@pytest.mark.parametrize(
    ("make", "shape", "layers"),
    [
        (lambda: bnn.mlp((3, 4, 1)), (3,), ("layers.0",)),
        (bnn.lenet5, (28, 28, 1), ("conv0",)),
        (lambda: bnn.Network.from_equinox(Module), (2, 4, 4), ("convolution",)),
        (lambda: bnn.Network.from_equinox(Recurrent), (5, 3), ("cell.weight_ih",)),
    ],
    ids=["mlp", "lenet5", "convolution", "recurrent"],
)
def test_the_first_layers_of_other_networks(make, shape, layers):
    network = dataclasses.replace(make(), first_layers=())
    assert network.for_inputs(np.ones((2, *shape))).first_layers == layers


def test_all_the_gates_of_a_linen_cell_are_first_layers():
    linen = pytest.importorskip("flax.linen")
    layers = [linen.RNN(linen.GRUCell(4)), lambda h: h[:, -1], linen.Dense(1)]
    network = bnn.Network.from_flax(linen.Sequential(layers), np.ones((2, 5, 3)))
    assert {name.split(".")[-1] for name in network.first_layers} == {"ir", "iz", "in"}
