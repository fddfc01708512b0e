"""Networks from Equinox and Flax modules."""

import importlib.util
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi import bnn
from gpvi.errors import InputError, NotAvailableError

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


def test_an_equinox_module_keeps_its_function():
    module = Module(KEY)
    network = bnn.Network.from_equinox(module)
    x = jax.random.normal(KEY, (5, 2, 4, 4))
    flat = network.ravel(eqx.filter(module, eqx.is_inexact_array))
    np.testing.assert_allclose(network.apply(flat, x), jax.vmap(module)(x), rtol=1e-6)


def test_a_factory_is_asked_for_fresh_weights():
    network, key = bnn.Network.from_equinox(Module), jax.random.key(3)
    np.testing.assert_array_equal(
        network.init(key), network.ravel(eqx.filter(Module(key), eqx.is_inexact_array))
    )


def test_a_module_is_drawn_anew_as_equinox_does():
    network = bnn.Network.from_equinox(Module(KEY))
    draws = np.asarray(jax.jit(jax.vmap(network.init))(jax.random.split(KEY, 400)))
    for leaf in network.leaves:
        own = draws[:, leaf.start : leaf.stop]
        if leaf.layer == "norm":
            assert (own == (leaf.name == "norm.weight")).all()
            continue
        bound = leaf.fan_in**-0.5
        assert np.abs(own).max() <= bound
        assert own.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_constants_of_an_equinox_module():
    """Arrays of NumPy are constants, and so is what `trainable` leaves out."""

    class Scaled(eqx.Module):
        dense: eqx.nn.Linear
        mean: jax.Array
        sd: np.ndarray

        def __init__(self, key):
            self.dense = eqx.nn.Linear(2, 1, key=key)
            self.mean, self.sd = jnp.full(2, 5.0), np.full(2, 2.0)

        def __call__(self, x):
            return self.dense((x - self.mean) / self.sd)

    def names(*args):
        return [leaf.name for leaf in bnn.Network.from_equinox(*args).leaves]

    module = Scaled(KEY)
    assert names(Scaled) == names(module) == ["dense.weight", "dense.bias", "mean"]
    assert names(module, eqx.is_inexact_array)[2:] == ["mean", "sd"]
    mask = eqx.tree_at(lambda m: m.mean, jax.tree.map(lambda _: True, module), False)
    assert names(Scaled, mask) == ["dense.weight", "dense.bias", "sd"]
    network = bnn.Network.from_equinox(module, lambda leaf: leaf.ndim > 1)
    x = jnp.ones((3, 2))
    np.testing.assert_allclose(network.apply(module.dense.weight[0], x), jax.vmap(module)(x))
    with pytest.raises(InputError, match="another structure than the module Scaled"):
        bnn.Network.from_equinox(module, {"dense": True})


def test_linen_embeds_token_ids():
    linen = pytest.importorskip("flax.linen")
    ids = np.arange(6).reshape(2, 3)
    layers = [linen.Embed(9, 4), lambda embedded: embedded.mean(1), linen.Dense(1)]
    network = bnn.Network.from_flax(linen.Sequential(layers), ids)
    assert network.size == 9 * 4 + 5
    assert network.input_dtype(ids) == np.int32
    dense = bnn.Network.from_flax(linen.Dense(1), ids)
    assert dense.input_dtype(ids).kind == "f"


def test_the_scales_of_a_norm_are_no_weights_whatever_their_shape():
    norm, dense = eqx.nn.LayerNorm((4, 6)), eqx.nn.Linear(24, 2, key=KEY)
    network = bnn.Network.from_equinox(eqx.nn.Sequential([norm, eqx.nn.Lambda(jnp.ravel), dense]))
    kinds = {leaf.name: (leaf.kind, leaf.fan_in) for leaf in network.leaves}
    assert kinds["layers.0.weight"] == kinds["layers.0.bias"] == ("bias", 1)
    assert kinds["layers.2.weight"] == ("weight", 24)


def test_the_scales_of_a_linen_norm_are_no_weights():
    linen = pytest.importorskip("flax.linen")
    norm = linen.LayerNorm(reduction_axes=(1, 2), feature_axes=(1, 2))
    (bias, scale) = bnn.Network.from_flax(norm, np.ones((2, 4, 6))).leaves
    assert scale.shape == (4, 6) and scale.kind == bias.kind == "bias"


def test_batch_norm_is_fine_once_it_holds_no_state_and_dropout_once_off():
    module = eqx.nn.Sequential([eqx.nn.Linear(2, 2, key=KEY), eqx.nn.Dropout(0.5)])
    network = bnn.Network.from_equinox(eqx.nn.inference_mode(module))
    assert network.outputs(jnp.ones((1, 2))) == 2


@pytest.mark.skipif(importlib.util.find_spec("flax") is not None, reason="Flax is here")
def test_without_flax():
    with pytest.raises(NotAvailableError, match=r"gpvi\[flax\].*from_functions"):
        bnn.Network.from_flax(object())


def test_linen():
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(2)])
    x = jax.random.normal(KEY, (5, 3))
    network = bnn.Network.from_flax(module, x)
    flat = network.init(KEY)
    assert network.size == 4 * 4 + 5 * 2
    expected = module.apply(module.init(KEY, x), x)
    np.testing.assert_allclose(network.apply(flat, x), expected, rtol=1e-6)
    with pytest.raises(InputError, match="batch_stats"):
        bnn.Network.from_flax(linen.BatchNorm(use_running_average=True), x)
    with pytest.raises(InputError, match="example"):
        bnn.Network.from_flax(module)


def test_nnx():
    nnx = pytest.importorskip("flax.nnx")
    make = lambda rngs: nnx.Linear(3, 2, rngs=rngs)  # noqa: E731
    network, x = bnn.Network.from_flax(make), jax.random.normal(KEY, (5, 3))
    np.testing.assert_allclose(
        network.apply(network.init(KEY), x), make(nnx.Rngs(KEY))(x), rtol=1e-6
    )
    with pytest.raises(InputError, match="already built"):
        bnn.Network.from_flax(make(nnx.Rngs(0)))
    with pytest.raises(InputError, match="BatchStat"):
        bnn.Network.from_flax(lambda rngs: nnx.BatchNorm(3, rngs=rngs))


@pytest.mark.parametrize("active", [False, True])
def test_nnx_with_other_variables(active):
    """Constants and the keys of a dropout that is off stay; one that is on is refused."""
    nnx = pytest.importorskip("flax.nnx")

    class Scaled(nnx.Module):
        def __init__(self, rngs):
            self.dense, self.scale = nnx.Linear(3, 2, rngs=rngs), nnx.Variable(jnp.array(3.0))
            self.dropout = nnx.Dropout(0.5, deterministic=not active, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.dense(x)) * self.scale[...]

    if active:
        with pytest.raises(InputError, match=r"active Dropout.*deterministic=True"):
            bnn.Network.from_flax(Scaled)
        return
    network, x = bnn.Network.from_flax(Scaled), jax.random.normal(KEY, (5, 3))
    assert network.outputs(x) == 2 and network.size == 8
    expected = Scaled(nnx.Rngs(KEY))(x)
    np.testing.assert_allclose(jax.jit(network.apply)(network.init(KEY), x), expected, 1e-6)


def test_linen_dropout_is_refused_at_once():
    linen = pytest.importorskip("flax.linen")
    layers = [linen.Dense(4), linen.Dropout(0.5, deterministic=False), linen.Dense(1)]
    with pytest.raises(InputError, match=r"active Dropout.*deterministic=True"):
        bnn.Network.from_flax(linen.Sequential(layers), np.ones((2, 3)))
