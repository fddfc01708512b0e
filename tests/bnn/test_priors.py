"""Priors of the weights, against SciPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpvi import bnn
from gpvi.bnn.priors import as_prior
from gpvi.errors import InputError

NETWORK = bnn.mlp((3, 5, 2))


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
def test_gaussians(prior, scales):
    w = np.random.default_rng(0).standard_normal(NETWORK.size)
    expected = 0.0
    for leaf in NETWORK.leaves:
        scale = next((s for part, s in scales.items() if part in leaf.name), 1.0)
        expected += stats.norm.logpdf(w[leaf.start : leaf.stop], scale=scale).sum()
    own = as_prior(prior).log_prob(jnp.asarray(w, jnp.float32), NETWORK)
    assert own == pytest.approx(expected, rel=1e-5)


def test_scale_mixture():
    w = np.random.default_rng(0).standard_normal(NETWORK.size)
    prior = bnn.ScaleMixture(share=0.2, wide=2.0, narrow=0.05)
    density = 0.2 * stats.norm.pdf(w, scale=2.0) + 0.8 * stats.norm.pdf(w, scale=0.05)
    own = prior.log_prob(jnp.asarray(w, jnp.float32), NETWORK)
    assert own == pytest.approx(np.log(density).sum(), rel=1e-5)


def test_sparse():
    """The mixture is for the weights of later layers alone."""
    w = np.random.default_rng(0).standard_normal(NETWORK.size)
    prior = bnn.Sparse(gain=1.5, bias=0.4, share=0.2, narrow=0.05)
    wide = 1.5 / (0.2 * 5) ** 0.5
    expected = 0.0
    for leaf in NETWORK.leaves:
        own = w[leaf.start : leaf.stop]
        if leaf.name == "layers.1.weight":
            kept, dropped = stats.norm.pdf(own, scale=wide), stats.norm.pdf(own, 0, 0.05 * wide)
            expected += np.log(0.2 * kept + 0.8 * dropped).sum()
        else:
            scale = 0.4 if leaf.kind == "bias" else 1.5 / 3**0.5
            expected += stats.norm.logpdf(own, scale=scale).sum()
    found = prior.log_prob(jnp.asarray(w, jnp.float32), NETWORK)
    assert found == pytest.approx(expected, rel=1e-5)
    assert as_prior("sparse") == bnn.Sparse()


def test_sparse_knows_the_layers_of_weights_that_lie_side_by_side():
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
            lambda: bnn.PerLayer((1.0,)).log_prob(jnp.zeros(32), NETWORK),
            "1 scales for the 2 layers",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message):
        make()
