"""Networks as flat vectors, their priors, likelihoods and targets, generators for them, and what they predict."""

import dataclasses
import importlib.util
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import integrate, optimize, stats

from gpvi import GPVI, bnn, fit
from gpvi.bnn import likelihoods, model
from gpvi.bnn.likelihoods import as_likelihood
from gpvi.bnn.networks import convolution
from gpvi.bnn.prediction import predictive
from gpvi.bnn.priors import as_prior
from gpvi.errors import InputError, NotAvailableError, UnknownOptionError
from gpvi.generators import AffineFlow, SplineFlow, Triangular
from gpvi.methods.carriers import Particles
from gpvi.posterior.history import Training
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine, Whitened
from selection import slow, some_slow

KEY = jax.random.key(0)
GIB = 2**30


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


class TestNetworks:
    @pytest.mark.parametrize("kind", NETWORKS)
    def test_flat_and_back(self, kind):
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

    def test_sizes_of_the_paper(self):
        assert bnn.mlp((2, 10, 10, 4)).size == 184
        assert bnn.mlp((2, 10, 10, 2)).size == 162
        assert bnn.lenet5().size == 61_706

    def test_an_equinox_module_keeps_its_function(self):
        module = Module(KEY)
        network = bnn.Network.from_equinox(module)
        x = jax.random.normal(KEY, (5, 2, 4, 4))
        flat = network.ravel(eqx.filter(module, eqx.is_inexact_array))
        np.testing.assert_allclose(network.apply(flat, x), jax.vmap(module)(x), rtol=1e-6)

    def test_a_factory_is_asked_for_fresh_weights(self):
        network, key = bnn.Network.from_equinox(Module), jax.random.key(3)
        np.testing.assert_array_equal(
            network.init(key), network.ravel(eqx.filter(Module(key), eqx.is_inexact_array))
        )

    def test_a_module_is_drawn_anew_as_equinox_does(self):
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

    def test_constants_of_an_equinox_module(self):
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

    @pytest.mark.slow
    def test_token_ids_stay_whole_and_counts_do_not(self):
        class Tokens(eqx.Module):
            embedding: eqx.nn.Embedding

            def __init__(self, key):
                self.embedding = eqx.nn.Embedding(20, 2, key=key)

            def __call__(self, x):
                return jax.vmap(self.embedding)(x).mean(0)

        network, ids = bnn.Network.from_equinox(Tokens), np.arange(30).reshape(10, 3) % 20
        target = bnn.target(network, "gaussian", "fan-in", ids, np.ones((10, 2)))
        assert target.data[0].dtype == np.int32
        assert jnp.isfinite(target.log_density(target.initial))
        own = bnn.Predictive(posterior_of(network, 2), network, "gaussian")
        assert jnp.isfinite(own.predict(ids.tolist(), key=KEY, draws=3).mean).all()
        with pytest.raises(InputError, match=r"takes whole numbers.*X.astype\(int\)"):
            network.outputs(ids / 2)
        counts = bnn.target(bnn.mlp((3, 1)), "gaussian", "fan-in", ids, np.ones(10))
        assert counts.data[0].dtype == np.float32

    def test_linen_embeds_token_ids(self):
        linen = pytest.importorskip("flax.linen")
        ids = np.arange(6).reshape(2, 3)
        layers = [linen.Embed(9, 4), lambda embedded: embedded.mean(1), linen.Dense(1)]
        network = bnn.Network.from_flax(linen.Sequential(layers), ids)
        assert network.size == 9 * 4 + 5
        assert network.input_dtype(ids) == np.int32
        dense = bnn.Network.from_flax(linen.Dense(1), ids)
        assert dense.input_dtype(ids).kind == "f"

    def test_fan_in(self):
        by_name = {leaf.name: leaf.fan_in for leaf in bnn.Network.from_equinox(Module).leaves}
        assert by_name["convolution.weight"] == by_name["convolution.bias"] == 2 * 3 * 3
        assert by_name["dense.weight"] == 12
        assert by_name["norm.bias"] == 1
        by_name = {leaf.name: leaf.fan_in for leaf in bnn.lenet5().leaves}
        assert by_name["conv1.weight"] == by_name["conv1.bias"] == 5 * 5 * 6
        assert by_name["dense0.weight"] == 400

    def test_the_scales_of_a_norm_are_no_weights_whatever_their_shape(self):
        norm, dense = eqx.nn.LayerNorm((4, 6)), eqx.nn.Linear(24, 2, key=KEY)
        network = bnn.Network.from_equinox(
            eqx.nn.Sequential([norm, eqx.nn.Lambda(jnp.ravel), dense])
        )
        kinds = {leaf.name: (leaf.kind, leaf.fan_in) for leaf in network.leaves}
        assert kinds["layers.0.weight"] == kinds["layers.0.bias"] == ("bias", 1)
        assert kinds["layers.2.weight"] == ("weight", 24)

    def test_the_scales_of_a_linen_norm_are_no_weights(self):
        linen = pytest.importorskip("flax.linen")
        norm = linen.LayerNorm(reduction_axes=(1, 2), feature_axes=(1, 2))
        (bias, scale) = bnn.Network.from_flax(norm, np.ones((2, 4, 6))).leaves
        assert scale.shape == (4, 6) and scale.kind == bias.kind == "bias"

    def test_built_in_networks_are_values(self):
        assert bnn.mlp((2, 3)) == bnn.mlp((2, 3))
        assert hash(bnn.lenet5()) == hash(bnn.lenet5())
        assert bnn.mlp((2, 3)) != bnn.mlp((2, 3), "tanh")

    def test_many_layers_stay_in_order(self):
        network = bnn.mlp((1, *range(2, 14), 1), "identity")
        assert [leaf.shape[0] for leaf in network.leaves if leaf.kind == "weight"] == [
            *range(1, 14)
        ]
        assert network.outputs(jnp.ones((1, 1))) == 1

    @pytest.mark.slow
    def test_lenet5_is_what_it_says(self):
        """Against XLA's own convolution and pooling."""
        network, x = bnn.lenet5(), jax.random.normal(KEY, (3, 28, 28, 1))
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
        h = h.reshape(3, -1)
        for name in ("dense0", "dense1"):
            h = jax.nn.relu(h @ p[name]["weight"] + p[name]["bias"])
        expected = h @ p["dense2"]["weight"] + p["dense2"]["bias"]
        np.testing.assert_allclose(jax.jit(network.apply)(flat, x), expected, atol=1e-5)

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
    def test_refusals(self, make, message):
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
    def test_a_network_that_fails_is_quoted(self, apply, said, advised):
        network = bnn.Network.from_functions(lambda key: jnp.ones((2, 1)), apply)
        with pytest.raises(InputError, match=said) as caught:
            network.outputs(np.ones((5, 3)))
        assert ("Check the number of features" in str(caught.value)) == advised

    def test_batch_norm_is_fine_once_it_holds_no_state_and_dropout_once_off(self):
        module = eqx.nn.Sequential([eqx.nn.Linear(2, 2, key=KEY), eqx.nn.Dropout(0.5)])
        network = bnn.Network.from_equinox(eqx.nn.inference_mode(module))
        assert network.outputs(jnp.ones((1, 2))) == 2

    @pytest.mark.skipif(importlib.util.find_spec("flax") is not None, reason="Flax is here")
    def test_without_flax(self):
        with pytest.raises(NotAvailableError, match=r"gpvi\[flax\].*from_functions"):
            bnn.Network.from_flax(object())

    def test_linen(self):
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

    def test_nnx(self):
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
    def test_nnx_with_other_variables(self, active):
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

    def test_linen_dropout_is_refused_at_once(self):
        linen = pytest.importorskip("flax.linen")
        layers = [linen.Dense(4), linen.Dropout(0.5, deterministic=False), linen.Dense(1)]
        with pytest.raises(InputError, match=r"active Dropout.*deterministic=True"):
            bnn.Network.from_flax(linen.Sequential(layers), np.ones((2, 3)))


class TestConvolution:
    @pytest.mark.parametrize(
        ("window", "stride", "padding"),
        [
            ((5, 5), (1, 1), "SAME"),
            ((4, 3), (3, 2), "VALID"),
            ((3, 3), (2, 1), ((2, 0), (1, 3))),
        ],
    )
    def test_equals_xla_for_every_particle(self, window, stride, padding):
        """Values and gradients, weights per particle."""
        weights = jax.random.normal(KEY, (3, *window, 2, 4))
        x = jax.random.normal(jax.random.key(1), (5, 11, 9, 2))

        def xla(w):
            return jax.lax.conv_general_dilated(
                x, w, stride, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        def ours(w):
            return convolution.convolve(x, w, stride=stride, padding=padding)

        def both(form):
            loss = lambda w: jnp.sin(form(w)).sum()  # noqa: E731
            return jax.jit(lambda w: (jax.vmap(form)(w), jax.vmap(jax.grad(loss))(w)))(weights)

        for own, expected in zip(both(ours), both(xla), strict=True):
            np.testing.assert_allclose(own, expected, atol=1e-5 * np.abs(expected).max())

    def test_stays_a_matrix_product_under_vmap(self):
        weights, x = jnp.ones((3, 5, 5, 2, 4)), jnp.ones((2, 9, 9, 2))
        lowered = jax.jit(jax.vmap(lambda w: convolution.convolve(x, w))).lower(weights)
        assert "stablehlo.convolution" not in lowered.as_text()
        assert "stablehlo.dot_general" in lowered.as_text()

    @pytest.mark.slow
    def test_patches_in_round_numbers_on_a_gpu(self, monkeypatch):
        """Patches of zeros change neither values nor gradients, in the weights and in the images."""
        w, x = jax.random.normal(KEY, (3, 3, 2, 4)), jax.random.normal(KEY, (5, 11, 9, 2))

        def both():
            out, back = jax.vjp(convolution.convolve, x, w)
            return out, *back(jnp.sin(out))

        expected = both()
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(convolution, "MANY", 1)
        assert convolution._idle(5 * 9 * 7) == convolution.ROUND - 315
        for own, plain in zip(both(), expected, strict=True):
            np.testing.assert_allclose(own, plain, atol=1e-5 * np.abs(plain).max())

    def test_max_pool(self):
        x = jax.random.normal(KEY, (2, 7, 6, 3))
        expected = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 2, 3, 1), (1, 2, 3, 1), "VALID"
        )
        np.testing.assert_array_equal(convolution.max_pool(x, (2, 3)), expected)

    def test_a_window_larger_than_the_image(self):
        with pytest.raises(InputError, match="does not fit"):
            convolution.convolve(jnp.ones((1, 3, 3, 1)), jnp.ones((5, 5, 1, 1)))


class TestPriors:
    network = bnn.mlp((3, 5, 2))

    @pytest.mark.parametrize(
        ("prior", "scales"),
        [
            ("normal", {}),
            (bnn.StandardNormal(0.7), {"": 0.7}),
            (
                bnn.FanIn(gain=1.5, bias=0.4),
                {"bias": 0.4, "0.weight": 1.5 / 3**0.5, "1.weight": 1.5 / 5**0.5},
            ),
            (bnn.PerLayer((0.3, 2.0)), {"layers.0": 0.3, "layers.1": 2.0}),
        ],
    )
    def test_gaussians(self, prior, scales):
        w = np.random.default_rng(0).standard_normal(self.network.size)
        expected = 0.0
        for leaf in self.network.leaves:
            scale = next((s for part, s in scales.items() if part in leaf.name), 1.0)
            expected += stats.norm.logpdf(w[leaf.start : leaf.stop], scale=scale).sum()
        own = as_prior(prior).log_prob(jnp.asarray(w, jnp.float32), self.network)
        assert own == pytest.approx(expected, rel=1e-5)

    def test_scale_mixture(self):
        w = np.random.default_rng(0).standard_normal(self.network.size)
        prior = bnn.ScaleMixture(share=0.2, wide=2.0, narrow=0.05)
        density = 0.2 * stats.norm.pdf(w, scale=2.0) + 0.8 * stats.norm.pdf(w, scale=0.05)
        own = prior.log_prob(jnp.asarray(w, jnp.float32), self.network)
        assert own == pytest.approx(np.log(density).sum(), rel=1e-5)

    def test_sparse(self):
        """The mixture is for the weights of later layers alone."""
        w = np.random.default_rng(0).standard_normal(self.network.size)
        prior = bnn.Sparse(gain=1.5, bias=0.4, share=0.2, narrow=0.05)
        wide = 1.5 / (0.2 * 5) ** 0.5
        expected = 0.0
        for leaf in self.network.leaves:
            own = w[leaf.start : leaf.stop]
            if leaf.name == "layers.1.weight":
                kept, dropped = stats.norm.pdf(own, scale=wide), stats.norm.pdf(own, 0, 0.05 * wide)
                expected += np.log(0.2 * kept + 0.8 * dropped).sum()
            else:
                scale = 0.4 if leaf.kind == "bias" else 1.5 / 3**0.5
                expected += stats.norm.logpdf(own, scale=scale).sum()
        found = prior.log_prob(jnp.asarray(w, jnp.float32), self.network)
        assert found == pytest.approx(expected, rel=1e-5)
        assert as_prior("sparse") == bnn.Sparse()

    def test_sparse_knows_the_layers_of_weights_that_lie_side_by_side(self):
        """As of the same weights in a dictionary of layers."""
        shapes = {"w1": (3, 5), "b1": (5,), "w2": (5, 2), "b2": (2,)}
        flat = lambda key: {name: jnp.ones(shape) for name, shape in shapes.items()}  # noqa: E731

        def nested(key):
            own = flat(key)
            return {i: {"w": own[f"w{i}"], "b": own[f"b{i}"]} for i in ("1", "2")}

        def apply(own, x):
            return jnp.tanh(x @ own["w1"] + own["b1"]) @ own["w2"] + own["b2"]

        side = bnn.Network.from_functions(flat, apply)
        deep = bnn.Network.from_functions(
            nested, lambda own, x: apply({k + i: own[i][k] for i in own for k in own[i]}, x)
        )
        ones = jnp.ones(side.size)
        expected = float(bnn.Sparse().log_prob(ones, deep))
        assert float(bnn.Sparse().log_prob(ones, side)) == pytest.approx(expected, rel=1e-5)
        assert abs(bnn.FanIn(2.0, 2.0).log_prob(ones, side) - expected) > 1

    def test_the_first_layer_is_the_one_that_x_enters(self):
        """By their names the last layer would be the first."""
        shapes = {"w_in": (3, 5), "out": (5, 1)}
        init = lambda key: {name: {"w": jnp.ones(shape)} for name, shape in shapes.items()}  # noqa: E731

        def apply(own, x):
            return jax.nn.relu(x @ own["w_in"]["w"]) @ own["out"]["w"]

        network, x = bnn.Network.from_functions(init, apply), np.ones((4, 3))
        assert network.first_layers == network.seeing(np.ones((4, 2))).first_layers == ("out",)
        assert network.seeing(x).first_layers == ("w_in",)
        target = bnn.target(network, bnn.Gaussian(0.1), "sparse", x, np.zeros(4))
        at = jnp.zeros(20)
        known = bnn.Sparse().log_prob(at, network.seeing(x))
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
    def test_the_first_layers_of_other_networks(self, make, shape, layers):
        network = dataclasses.replace(make(), first_layers=())
        assert network.seeing(np.ones((2, *shape))).first_layers == layers

    def test_all_the_gates_of_a_linen_cell_are_first_layers(self):
        linen = pytest.importorskip("flax.linen")
        layers = [linen.RNN(linen.GRUCell(4)), lambda h: h[:, -1], linen.Dense(1)]
        network = bnn.Network.from_flax(linen.Sequential(layers), np.ones((2, 5, 3)))
        assert {name.split(".")[-1] for name in network.first_layers} == {"ir", "iz", "in"}

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: bnn.StandardNormal(0.0), "> 0"),
            (lambda: bnn.Sparse(share=0.0), "between 0 and 1"),
            (lambda: bnn.Sparse(narrow=0.0), "> 0"),
            (lambda: bnn.FanIn(gain=-1.0), "> 0"),
            (lambda: bnn.ScaleMixture(share=1.0), "between 0 and 1"),
            (lambda: as_prior("fanin"), "fan-in"),
            (lambda: as_prior(bnn.FanIn), "FanIn"),
            (
                lambda: bnn.PerLayer((1.0,)).log_prob(jnp.zeros(32), TestPriors.network),
                "1 scales for the 2 layers",
            ),
        ],
    )
    def test_refusals(self, make, message):
        with pytest.raises(InputError, match=message):
            make()


def softplus(x):
    return np.logaddexp(0.0, x)


OUT = np.array([[0.3, -0.8], [1.2, 0.1], [-0.5, 0.9]])
LOG_NOISE = np.array([-0.7, 0.2])
HALF = OUT[:, :1], 1e-3 + softplus(OUT[:, 1:])
SOFTMAX = np.exp(OUT) / np.exp(OUT).sum(1, keepdims=True)
SIGMOID = 1 / (1 + np.exp(-OUT))
CASES = {
    "gaussian": (bnn.Gaussian(), LOG_NOISE, stats.norm(OUT, np.exp(LOG_NOISE)), OUT + 0.4),
    "fixed": (bnn.Gaussian(0.6), LOG_NOISE[:0], stats.norm(OUT, 0.6), OUT - 0.2),
    "heteroscedastic": (
        bnn.Heteroscedastic(),
        LOG_NOISE[:0],
        stats.norm(*HALF),
        np.array([[0.1], [2.0], [-1.0]]),
    ),
    "bernoulli": (
        bnn.Bernoulli(),
        LOG_NOISE[:0],
        stats.bernoulli(SIGMOID),
        np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]),
    ),
    "poisson": (
        bnn.Poisson(),
        LOG_NOISE[:0],
        stats.poisson(np.exp(OUT)),
        np.array([[0.0, 3.0], [1.0, 2.0], [5.0, 0.0]]),
    ),
}


def f32(*arrays):
    return [jnp.asarray(a, jnp.float32) for a in arrays]


def sampled(likelihood, out, extra, n=20_000):
    one = lambda key: likelihood.sample(out, extra, key=key)  # noqa: E731
    return jax.jit(jax.vmap(one))(jax.random.split(KEY, n))


class TestLikelihoods:
    @pytest.mark.parametrize("kind", CASES)
    def test_against_scipy(self, kind):
        likelihood, extra, reference, y = CASES[kind]
        out, extra, values = f32(OUT, extra, likelihood.prepare(y, 2))
        log_density = reference.logpmf if likelihood.discrete else reference.logpdf
        own = jax.jit(likelihood.log_prob)(out, extra, values)
        np.testing.assert_allclose(own, log_density(y).sum(1), rtol=1e-5)
        mean, variance = likelihood.moments(out, extra)
        np.testing.assert_allclose(mean, reference.mean(), rtol=1e-5)
        np.testing.assert_allclose(variance, reference.var(), rtol=1e-5)
        draws = np.asarray(sampled(likelihood, out, extra))
        np.testing.assert_allclose(
            draws.mean(0), reference.mean(), atol=5 * reference.std().max() / 141
        )
        np.testing.assert_allclose(draws.var(0), reference.var(), rtol=0.12)
        if likelihood.classifies:
            np.testing.assert_allclose(
                likelihood.entropy(out), reference.entropy().sum(1), rtol=1e-5
            )
            with pytest.raises(NotAvailableError, match="no order"):
                likelihood.cdf(out, extra, values)
        else:
            at = y + 0.3
            np.testing.assert_allclose(
                likelihood.cdf(out, extra, f32(at)[0]), reference.cdf(at), rtol=1e-4
            )
            with pytest.raises(NotAvailableError, match="no closed form"):
                likelihood.entropy(out)

    def test_what_an_object_of_your_own_lacks_is_named(self):
        class Mine:
            discrete = classifies = False

            def log_prob(self, outputs, extra, y):
                return outputs

        with pytest.raises(
            InputError, match=r"This one lacks columns, extra, start, .*mixture_entropy"
        ):
            as_likelihood(Mine())
        with pytest.raises(InputError, match=r"This one lacks log_prob\."):
            as_prior(lambda flat: 0.0)
        assert isinstance(bnn.Gaussian(), bnn.Likelihood) and isinstance(bnn.FanIn(), bnn.Prior)

    def test_a_likelihood_without_a_cdf_says_so(self):
        class Mine(likelihoods._Plain):
            pass

        with pytest.raises(NotAvailableError, match=r"Mine has no cdf.*Predictive\.sample"):
            Mine().cdf(*f32(OUT, LOG_NOISE, OUT))

    @pytest.mark.parametrize(("axis", "shape"), [(0, r"\(\)"), (None, r"\(3, 1\)")])
    def test_log_prob_must_give_one_number_for_each_datum(self, axis, shape):
        class Mine(bnn.Gaussian):
            def log_prob(self, outputs, extra, y):
                return (y - outputs).sum() if axis == 0 else y - outputs

        with pytest.raises(InputError, match=rf"Mine.log_prob gives shape {shape}.*sum\(1\)"):
            bnn.target(bnn.mlp((3, 1)), Mine(), "fan-in", np.ones((5, 3)), np.ones(5))

    def test_categorical(self):
        likelihood = bnn.Categorical()
        out, extra = f32(OUT, LOG_NOISE[:0])
        y = np.array([1, 0, 1])
        own = likelihood.log_prob(out, extra, jnp.asarray(likelihood.prepare(y, 2)))
        np.testing.assert_allclose(own, np.log(SOFTMAX[np.arange(3), y]), rtol=1e-5)
        mean, variance = likelihood.moments(out, extra)
        np.testing.assert_allclose(mean, SOFTMAX, rtol=1e-5)
        np.testing.assert_allclose(variance, SOFTMAX * (1 - SOFTMAX), rtol=1e-5)
        np.testing.assert_allclose(
            likelihood.entropy(out), stats.entropy(SOFTMAX, axis=1), rtol=1e-5
        )
        draws = np.asarray(sampled(likelihood, out, extra))
        np.testing.assert_allclose((draws == 1).mean(0), SOFTMAX[:, 1], atol=0.02)

    @pytest.mark.parametrize(
        ("prior", "sigma"),
        [
            (bnn.HalfCauchy(0.5), stats.halfcauchy(scale=0.5)),
            (bnn.LogNormal(0.2, 0.7), stats.lognorm(0.7, scale=0.2)),
        ],
    )
    def test_noise_priors(self, prior, sigma):
        """The density of log σ is σ times that of σ, and integrates to one."""
        log_noise = np.array([-1.0, 0.4])
        expected = (sigma.logpdf(np.exp(log_noise)) + log_noise).sum()
        likelihood = bnn.Gaussian(prior)
        assert likelihood.log_prior(*f32(log_noise)) == pytest.approx(expected, rel=1e-5)
        grid = np.linspace(-30.0, 30.0, 6_001)
        density = np.exp(jax.vmap(prior.log_prob)(jnp.asarray(grid[:, None], jnp.float32)))
        assert integrate.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-3)

    def test_extra_coordinates(self):
        assert bnn.Gaussian(0.1).extra(3) == ()
        assert bnn.Gaussian("sampled").extra(2) == ("log_noise[0]", "log_noise[1]")
        np.testing.assert_allclose(bnn.Gaussian(start_noise=0.2).start(2), np.log([0.2, 0.2]))
        assert bnn.Gaussian(likelihoods.Flat()).log_prior(jnp.ones(2)) == 0

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: bnn.Gaussian(0.0), "> 0"),
            (lambda: bnn.Gaussian("leraned"), "Did you mean 'learned'"),
            (lambda: bnn.Gaussian(3j), "HalfCauchy"),  # pyright: ignore[reportArgumentType]
            (lambda: bnn.Heteroscedastic().prepare([1.0], 3), "3 outputs"),
            (lambda: as_likelihood("gausian"), "Did you mean 'gaussian'"),
            (lambda: as_likelihood(bnn.Poisson), "Poisson"),
            (lambda: bnn.Gaussian().prepare(["a"], 1), "numbers"),
            (lambda: bnn.Gaussian().prepare([[1.0, 2.0]], 1), r"\(1, 2\).*1 column"),
            (lambda: bnn.Gaussian().prepare([1.0, np.nan], 1), "holds nan at index .1, 0."),
            (lambda: bnn.Categorical().prepare([0, 3], 3), "3 in row 1.*0 to 2"),
            (lambda: bnn.Categorical().prepare([0, -1], 3), "-1 in row 1"),
            (lambda: bnn.Categorical().prepare([0.5], 3), "0.5 in row 0"),
            (lambda: bnn.Categorical().prepare(["a"], 3), "whole numbers"),
            (lambda: bnn.Categorical().prepare(np.eye(3), 3), "argmax"),
            (lambda: bnn.Categorical().prepare([0], 1), "Bernoulli"),
            (lambda: bnn.Bernoulli().prepare([0, 2], 1), "2.0 in row 1.*0 to 1"),
            (lambda: bnn.Poisson().prepare([-1.0], 1), "-1.0 in row 0.*≥ 0"),
        ],
    )
    def test_refusals(self, make, message):
        with pytest.raises((InputError, UnknownOptionError), match=message):
            make()


def regression(n=12, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3))
    return x, np.stack([x[:, 0] - x[:, 1], np.sin(x[:, 2])], 1)


class TestTarget:
    def test_is_likelihood_plus_prior_over_temperature(self):
        network, (X, y) = bnn.mlp((3, 5, 2), "tanh"), regression()
        target = bnn.target(network, "gaussian", bnn.FanIn(), X, y, temperature=0.5)
        assert target.dim == network.size + 2
        assert target.names[-1] == "log_noise[1]"
        x = jnp.asarray(np.random.default_rng(1).standard_normal(target.dim), jnp.float32)
        out = network.apply(x[:-2], jnp.asarray(X, jnp.float32))
        likelihood = stats.norm.logpdf(y, out, np.exp(x[-2:])).sum()
        prior = bnn.FanIn().log_prob(x[:-2], network) + bnn.HalfCauchy().log_prob(x[-2:])
        expected = (likelihood + prior) / 0.5
        assert target.log_density(x) == pytest.approx(float(expected), rel=1e-5)

    def test_mini_batches_are_unbiased(self):
        """The mean of the scores over a partition in batches is the score of the whole."""
        network, (X, y) = bnn.mlp((3, 5, 2), "tanh"), regression()
        target = bnn.target(network, "gaussian", "normal", X, y)
        x = target.starting_points(1, key=KEY)[0]
        parts = jnp.arange(12).reshape(4, 3)
        score = jax.jit(lambda i: target.score(x, target.batch(i)))
        scores = np.stack([score(part) for part in parts])
        assert scores.std(0).max() > 0.1
        np.testing.assert_allclose(scores.mean(0), score(jnp.arange(12)), rtol=1e-3, atol=1e-4)

    @pytest.mark.slow
    def test_many_data_go_through_in_pieces(self, monkeypatch):
        network, (X, y) = bnn.mlp((3, 5, 2), "tanh"), regression()
        target = bnn.target(network, "gaussian", "normal", X, y)
        x = target.starting_points(1, key=KEY)[0]
        whole = jax.jit(jax.value_and_grad(target.log_density))(x)
        for rows in (6, 5):
            monkeypatch.setattr(model, "ROWS", rows)
            pieces = jax.jit(jax.value_and_grad(target.log_density))(x)
            np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-5)
            np.testing.assert_allclose(pieces[1], whole[1], rtol=1e-4, atol=1e-4)

    def test_particles_start_at_the_initialisation(self):
        network, (X, y) = bnn.mlp((3, 5, 2)), regression()
        target = bnn.target(network, bnn.Gaussian(start_noise=0.2), "normal", X, y)
        points = target.starting_points(50, key=KEY)
        assert np.abs(points[:, :-2]).max() <= 3**-0.5
        assert points[:, :-2].std(0).min() > 0.1
        np.testing.assert_allclose(points[:, -2:], np.log(0.2), rtol=1e-6)

    def test_targets_of_one_network_are_of_one_form(self):
        """So that seeds and splits can be trained side by side."""
        first, second = (
            bnn.target(bnn.mlp((3, 5, 2)), "gaussian", "normal", *regression(seed=s))
            for s in (0, 1)
        )
        static = [eqx.filter(t, eqx.is_array, inverse=True) for t in (first, second)]
        assert eqx.tree_equal(*static) is True

    def test_double_precision(self):
        with jax.enable_x64(True):
            target = bnn.target(bnn.mlp((3, 2)), "gaussian", "normal", *regression())
            x = target.starting_points(1, key=KEY)[0]
            assert target.log_density(x).dtype == jnp.float64
            assert target.data[0].dtype == jnp.float64

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"X": np.full((4, 3), np.nan)}, r"X holds nan at index \(0, 0\)"),
            ({"X": np.ones((4, 2))}, "fails on inputs of shape"),
            ({"X": np.ones(4)}, r"X\[:, None\]"),
            ({"X": np.ones((0, 3))}, "shape"),
            ({"X": [["a"] * 3] * 4}, "numbers"),
            ({"X": np.ones((5, 3))}, "5 rows and y 4"),
            ({"y": [0, 1, 2, 1]}, "2 in row 2.*0 to 1"),
            ({"y": [0, 1, np.nan, 1]}, "nan in row 2"),
            ({"likelihood": "categoricl"}, "Did you mean"),
            ({"prior": "none"}, "unknown prior"),
            ({"temperature": 0.0}, "temperature"),
        ],
    )
    def test_bad_input(self, change, message):
        given = {
            "network": bnn.mlp((3, 2)),
            "likelihood": "categorical",
            "prior": "normal",
            "X": np.ones((4, 3)),
            "y": [0, 1, 0, 1],
        }
        with pytest.raises(InputError, match=message):
            bnn.target(**{**given, **change})


class Tensor:
    """As a tensor of PyTorch with gradients."""

    def __array__(self, *args, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


@pytest.mark.parametrize("name", ["X", "y"])
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_a_tensor_with_gradients_is_refused(name, likelihood):
    data = {"X": np.ones((4, 3)), "y": np.ones(4), name: Tensor()}
    with pytest.raises(InputError, match=rf"{name} is Tensor.*{name}\.detach\(\)\.numpy\(\)"):
        bnn.target(bnn.mlp((3, 2 - (likelihood == "gaussian"))), likelihood, "fan-in", **data)


class TestGenerators:
    def test_a_target_serves_in_place_of_its_dim(self):
        target = bnn.target(bnn.mlp((3, 1)), "gaussian", "fan-in", np.ones((4, 3)), np.ones(4))
        assert bnn.method(target) == bnn.method(target.dim)
        assert bnn.generator(target, latent=2) == bnn.generator(target.dim, latent=2)

    @pytest.mark.parametrize(
        ("head", "form"),
        [
            slow(AffineFlow(0.05), "conditional"),
            slow(SplineFlow(2, 3, width=4, scale=0.05), "constant"),
        ],
        ids=["affine", "spline"],
    )
    def test_a_factorised_last_layer(self, head, form):
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

    def test_rules_by_size(self):
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
    def test_a_step_fits_in_memory(self, network, shape, limit):
        """Compiled, not run: arguments, results and scratch of a step with a batch of 100."""
        with jax.enable_x64(False):
            method, optimizer = bnn.method(network.size), optax.adam(1e-3)
            X, y = np.zeros((100, *shape), np.float32), np.zeros(100, int)
            target = bnn.target(network, "categorical", "normal", X, y)
            density = Whitened(target, Affine.identity(target.dim, target.dtype))
            state = eqx.filter_eval_shape(lambda: method.init(density, optimizer, key=KEY))
            arrays, static = eqx.partition(state, lambda a: isinstance(a, jax.ShapeDtypeStruct))

            def step(arrays, batch, key):
                moved, _ = method.step(
                    density, optimizer, eqx.combine(arrays, static), batch, key=key
                )
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


def posterior_of(network, extra=0, seed=0, spread=0.3):
    """A posterior with some generator, without training."""
    dim = network.size + extra
    spec = Triangular(2, AffineFlow(spread), (4,), scale=spread)
    generator = spec.build(dim, key=jax.random.key(seed), dtype=jnp.float32)
    centre = jnp.concatenate([network.init(jax.random.key(seed)), jnp.full(extra, -1.0)])
    affine = Affine(centre, jnp.ones(dim))
    names = tuple(map(str, range(dim)))
    return Posterior(GPVI(spec), generator, Start(affine), names, Training(0, 0, 0.0, {}))


KINDS = {
    "gaussian": (bnn.Gaussian(), 2, 2),
    "heteroscedastic": (bnn.Heteroscedastic(), 4, 0),
    "poisson": (bnn.Poisson(), 2, 0),
    "bernoulli": (bnn.Bernoulli(), 1, 0),
    "categorical": (bnn.Categorical(), 3, 0),
}
X = np.random.default_rng(3).standard_normal((7, 3))


def predictive_of(kind, seed=0):
    likelihood, outputs, extra = KINDS[kind]
    network = bnn.mlp((3, 4, outputs), "tanh")
    return bnn.Predictive(posterior_of(network, extra, seed), network, likelihood)


def drawn_directly(own, n, key):
    """All n networks at once: their outputs and other coordinates."""
    networks = own._networks(n, jax.random.split(key)[0])
    size = own.network.size

    @eqx.filter_jit
    def draw(networks):
        blocks = [networks.draw(jnp.asarray(i))[0] for i in range(networks.blocks)]
        flat = jnp.concatenate(blocks)[:n]
        out = jax.vmap(own.network.apply, (0, None))(flat[:, :size], jnp.asarray(X, jnp.float32))
        return out, flat[:, size:]

    return draw(networks)


class TestPredictive:
    @pytest.mark.parametrize("kind", some_slow(KINDS, fast=("categorical",)))
    def test_streaming_is_the_direct_average(self, kind, monkeypatch):
        """In blocks of 8 networks and 3 rows, with idle places in the last of each."""
        own, n = predictive_of(kind), 45
        monkeypatch.setattr(predictive, "ENTRIES", 8 * own.posterior.dim)
        monkeypatch.setattr(predictive, "PAIRS", 24)
        found = own.predict(X, key=KEY, draws=n)
        y = own.sample(X, n, key=KEY)[-1]
        log_prob = own.log_prob(X, y, key=KEY, draws=n)
        out, extra = drawn_directly(own, n, KEY)

        @jax.jit
        def directly(out, extra):
            mean, variance = jax.vmap(own.likelihood.moments)(out, extra)
            each = jax.vmap(own.likelihood.log_prob, (0, 0, None))(out, extra, y)
            density = jax.nn.logsumexp(each, 0) - math.log(n)
            return mean.mean(0), variance.mean(0), mean.var(0), density

        mean, aleatoric, epistemic, density = directly(out, extra)
        np.testing.assert_allclose(found.mean, mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.aleatoric, aleatoric, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.epistemic, epistemic, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(log_prob, density, rtol=1e-4)
        np.testing.assert_allclose(own.outputs(X, n, key=KEY), out, rtol=1e-4, atol=1e-5)
        if own.likelihood.classifies:
            mixed = own.likelihood.mixture_entropy(mean)
            each = jax.jit(jax.vmap(own.likelihood.entropy))(out).mean(0)
            assert found.entropy is not None and found.mutual_information is not None
            np.testing.assert_allclose(found.entropy, mixed, rtol=1e-4)
            np.testing.assert_allclose(found.mutual_information, mixed - each, atol=1e-5)
            assert (found.mutual_information > 1e-3).all()
        else:
            assert found.entropy is None and found.mutual_information is None

    @pytest.mark.parametrize("kind", some_slow(KINDS, fast=("gaussian",)))
    def test_law_of_total_variance(self, kind):
        """Draws of y know nothing of the split, and have the variance that it sums to."""
        own = predictive_of(kind)
        found, y = own.predict(X, key=KEY, draws=20_000), own.sample(X, 20_000, key=KEY)
        if kind == "categorical":
            y = np.eye(3)[np.asarray(y)]
        y = np.asarray(y)
        sd = np.asarray(found.std)
        assert (np.abs(y.mean(0) - found.mean) < 5 * sd / 141).all()
        np.testing.assert_allclose(y.var(0), found.variance, rtol=0.12)
        assert (found.epistemic > 0.01 * found.variance).all()

    @pytest.mark.slow
    def test_quantiles_invert_the_mixture(self):
        own, n, levels = predictive_of("gaussian"), 45, (0.1, 0.9, 0.5)
        found = own.quantiles(X, levels, key=KEY, draws=n)
        lower, upper = own.interval(X, 0.8, key=KEY, draws=n)
        np.testing.assert_allclose(lower, found[0], atol=1e-5)
        np.testing.assert_allclose(upper, found[1], atol=1e-5)
        out, extra = drawn_directly(own, n, KEY)
        means, variances = map(np.asarray, jax.vmap(own.likelihood.moments)(out, extra))
        for p, own_row in zip(levels, found, strict=True):
            for row, column in np.ndindex(*own_row.shape):
                m, s = means[:, row, column], variances[:, row, column] ** 0.5
                gap = lambda v, m=m, s=s, p=p: stats.norm.cdf(v, m, s).mean() - p  # noqa: E731
                expected = optimize.brentq(gap, -50, 50)
                assert own_row[row, column] == pytest.approx(expected, abs=1e-3)

    @pytest.mark.slow
    def test_quantiles_of_counts(self):
        """The least whole number that reaches the level."""
        own, n = predictive_of("poisson"), 45
        out, _ = drawn_directly(own, n, KEY)
        counts = np.arange(200)
        mixture = stats.poisson.cdf(counts[:, None, None, None], np.exp(np.asarray(out))).mean(1)
        for p, found in zip(
            (0.1, 0.5, 0.95), own.quantiles(X, (0.1, 0.5, 0.95), key=KEY, draws=n), strict=True
        ):
            np.testing.assert_array_equal(found, (mixture >= p).argmax(0))

    def test_memory_does_not_grow_with_the_draws(self):
        """Compiled for ten networks and for ten thousand."""
        network = bnn.mlp((3, 400, 1))
        own = bnn.Predictive(posterior_of(network), network, bnn.Gaussian(0.1))
        inputs = jnp.asarray(X, jnp.float32)

        def scratch(n):
            networks = dataclasses.replace(own._networks(10, KEY), number=n)
            source, frame = eqx.partition(networks, eqx.is_array)

            def run(source, inputs):
                joined = eqx.combine(source, frame)
                return predictive._predict(network, own.likelihood, joined, KEY, inputs).mean

            program = jax.jit(run).lower(source, inputs).compile()
            memory = program.memory_analysis()
            assert memory is not None
            return memory.temp_size_in_bytes

        few, many = scratch(20), scratch(10_000)
        assert many < 1.02 * few
        assert many < 10_000 * network.size * 4 / 50

    @pytest.mark.parametrize("kind", some_slow(("gaussian", "categorical"), fast=("categorical",)))
    def test_rows_are_taken_some_at_a_time(self, kind, monkeypatch):
        own, y = predictive_of(kind), np.arange(len(X)) % 3
        y = y if kind == "categorical" else np.stack([y, y], 1)

        def all_of_it():
            moments = own.predict(X, key=KEY, draws=20)
            log_prob = own.log_prob(X, y, key=KEY, draws=20)
            if kind == "categorical":
                return moments, log_prob
            return moments, log_prob, own.quantiles(X, (0.1, 0.9), key=KEY, draws=20)

        whole = all_of_it()
        asked = []
        plain = predictive._predict
        monkeypatch.setattr(predictive, "OUTPUTS", 2 * 20 * 3)
        monkeypatch.setattr(
            predictive, "_predict", lambda *args: asked.append(len(args[-1])) or plain(*args)
        )
        parts = all_of_it()
        assert max(asked) < len(X) and len(asked) > 1
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), parts, whole
        )

    def test_several_posteriors_predict_as_their_mixture(self, monkeypatch):
        """In blocks of 8 networks with idle places; network i is of one member, i + 3 of the same."""
        own, n = [predictive_of("gaussian", seed) for seed in range(3)], 40
        posteriors = [each.posterior for each in own]
        monkeypatch.setattr(predictive, "ENTRIES", 8 * own[0].posterior.dim)
        mixture = bnn.Predictive(posteriors, own[0].network, own[0].likelihood)
        out = np.asarray(mixture.outputs(X, n, key=KEY))
        found = mixture.predict(X, key=KEY, draws=n)
        assert len(out) == n
        np.testing.assert_allclose(found.mean, out.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.epistemic, out.var(0), rtol=1e-3, atol=1e-5)
        many = np.asarray(mixture.outputs(X, 6_000, key=KEY))
        alone = [np.asarray(each.outputs(X, 2_000, key=KEY)) for each in own]
        means, sd = np.stack([each.mean(0) for each in alone]), np.std(alone)
        for member in range(3):
            gaps = np.abs(many[member::3].mean(0) - means).max((1, 2))
            assert gaps.min() < 0.15 * sd < np.sort(gaps)[1]
        firsts = {mixture.outputs(X, 1, key=jax.random.key(i)).tobytes() for i in range(3)}
        assert len(firsts) == 3

    @pytest.mark.parametrize("n", [1, 2, 4, 7, 9])
    def test_a_mixture_may_have_fewer_networks_than_members_or_a_block_without_any(
        self, n, monkeypatch
    ):
        """Three members in blocks of two: with 1, 2 or 7 networks some blocks hold none."""
        own = [predictive_of("gaussian", seed) for seed in range(3)]
        monkeypatch.setattr(predictive, "ENTRIES", 2 * own[0].posterior.dim)
        posteriors = [each.posterior for each in own]
        mixture = bnn.Predictive(posteriors, own[0].network, own[0].likelihood)
        out = np.asarray(mixture.outputs(X, n, key=KEY))
        found = mixture.predict(X, key=KEY, draws=n)
        np.testing.assert_allclose(found.mean, out.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.epistemic, out.var(0), rtol=1e-3, atol=1e-5)

    def test_posteriors_of_different_forms_do_not_mix(self):
        first, second = predictive_of("gaussian"), predictive_of("categorical")
        with pytest.raises(InputError, match="2 posteriors are of 2 different forms"):
            bnn.Predictive([first.posterior, second.posterior], first.network, first.likelihood)
        with pytest.raises(InputError, match="one or more"):
            bnn.Predictive([], first.network, first.likelihood)

    @pytest.mark.slow
    def test_all_particles_by_default(self):
        network = bnn.mlp((3, 4, 1), "tanh")
        base = posterior_of(network)
        table = jax.vmap(network.init)(jax.random.split(KEY, 6))
        identity = Affine.identity(network.size, jnp.float32)
        particles = Posterior(
            base.method, Particles(table), Start(identity), base.names, Training(0, 0, 0.0, {})
        )
        own = bnn.Predictive(particles, network, bnn.Gaussian(0.1))
        out = np.stack([network.apply(flat, jnp.asarray(X, jnp.float32)) for flat in table])
        found = own.predict(X, key=KEY)
        np.testing.assert_allclose(found.mean, out.mean(0), atol=1e-5)
        np.testing.assert_allclose(found.epistemic, out.var(0), atol=1e-5)
        fewer = np.asarray(own.outputs(X, 4, key=KEY))
        assert all(np.isclose(row, out, atol=1e-5).all((1, 2)).any() for row in fewer)
        with pytest.raises(NotAvailableError, match="holds 6 draws"):
            own.predict(X, key=KEY, draws=7)

    @pytest.mark.parametrize(
        ("call", "kind", "message"),
        [
            (lambda p: p.predict(X[:, :2], key=KEY), InputError, "fails on inputs"),
            (lambda p: p.predict(X, key=KEY, draws=0), InputError, "0.*≥ 1"),
            (lambda p: p.quantiles(X, 1.0, key=KEY), InputError, "between 0 and 1"),
            (lambda p: p.interval(X, 1.5, key=KEY), InputError, "between 0 and 1"),
            (lambda p: p.log_prob(X, np.zeros((6, 2)), key=KEY), InputError, "7 rows and y 6"),
            (
                lambda p: bnn.Predictive(p.posterior, bnn.mlp((3, 90, 2)), "gaussian"),
                InputError,
                "fewer than",
            ),
            (
                lambda p: bnn.Predictive(p.posterior, p.network, "poisson").predict(X, key=KEY),
                InputError,
                "2 coordinates beside",
            ),
            (
                lambda p: predictive_of("categorical").quantiles(X, 0.5, key=KEY),
                NotAvailableError,
                "no order",
            ),
        ],
    )
    def test_refusals(self, call, kind, message):
        with pytest.raises(kind, match=message):
            call(predictive_of("gaussian"))


def sharper(kind, s=2.5):
    own = predictive_of(kind)
    return bnn.Predictive(own.posterior, own.network, own.likelihood, sharpness=s)


@pytest.mark.parametrize("kind", some_slow(("categorical", "bernoulli"), fast=("categorical",)))
def test_sharpened_predictions_agree_with_each_other(kind):
    plain, sharp = predictive_of(kind), sharper(kind)
    before, after = (each.predict(X, key=KEY) for each in (plain, sharp))
    np.testing.assert_allclose(after.mean, bnn.sharpened(before.mean, 2.5), rtol=1e-5)
    np.testing.assert_allclose(after.variance, after.mean * (1 - after.mean), rtol=1e-3)
    np.testing.assert_allclose(
        after.epistemic / after.variance, before.epistemic / before.variance, rtol=1e-3
    )
    assert after.mutual_information is not None and after.entropy is not None
    assert before.entropy is not None and (after.entropy < before.entropy).all()
    assert (after.mutual_information > 0).all() and (after.mutual_information < after.entropy).all()
    logs = sharp.log_probabilities(X, key=KEY)
    np.testing.assert_allclose(jnp.exp(logs).sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(
        jnp.exp(logs)[:, -after.mean.shape[1] :], after.mean, rtol=1e-4, atol=1e-6
    )
    labels = np.arange(len(X)) % logs.shape[1]
    np.testing.assert_allclose(
        sharp.log_prob(X, labels, key=KEY), logs[np.arange(len(X)), labels], rtol=1e-6
    )


@pytest.mark.parametrize("kind", ["categorical", "bernoulli"])
def test_log_probabilities_are_those_of_each_label(kind):
    plain = predictive_of(kind)
    logs = plain.log_probabilities(X, key=KEY)
    for label in range(logs.shape[1]):
        each = plain.log_prob(X, np.full(len(X), label), key=KEY)
        np.testing.assert_allclose(logs[:, label], each, rtol=1e-5)


def test_several_labels_at_once_have_no_classes():
    network = bnn.mlp((3, 4, 2), "tanh")
    own = bnn.Predictive(posterior_of(network), network, "bernoulli")
    with pytest.raises(NotAvailableError, match="2 outputs is no distribution over classes"):
        own.log_probabilities(X, key=KEY)


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
