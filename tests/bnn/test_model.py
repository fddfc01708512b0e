"""The posterior of a network as a target."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpvi import bnn
from gpvi.bnn import model
from gpvi.errors import InputError

KEY = jax.random.key(0)


def regression(n=12, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3))
    return x, np.stack([x[:, 0] - x[:, 1], np.sin(x[:, 2])], 1)


def test_is_likelihood_plus_prior_over_temperature():
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


def test_mini_batches_are_unbiased():
    """The mean of the scores over a partition in batches is the score of the whole."""
    network, (X, y) = bnn.mlp((3, 5, 2), "tanh"), regression()
    target = bnn.target(network, "gaussian", "normal", X, y)
    x = target.starting_points(1, key=KEY)[0]
    parts = jnp.arange(12).reshape(4, 3)
    score = jax.jit(lambda i: target.score(x, target.batch(i)))
    scores = np.stack([score(part) for part in parts])
    assert scores.std(0).max() > 0.1
    np.testing.assert_allclose(scores.mean(0), score(jnp.arange(12)), rtol=1e-3, atol=1e-4)


def test_many_rows_go_through_in_pieces(monkeypatch):
    network, (X, y) = bnn.mlp((3, 5, 2), "tanh"), regression()
    target = bnn.target(network, "gaussian", "normal", X, y)
    x = target.starting_points(1, key=KEY)[0]
    whole = jax.jit(jax.value_and_grad(target.log_density))(x)
    for rows in (6, 5):
        monkeypatch.setattr(model, "ROWS", rows)
        pieces = jax.jit(jax.value_and_grad(target.log_density))(x)
        np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-5)
        np.testing.assert_allclose(pieces[1], whole[1], rtol=1e-4, atol=1e-4)


def test_particles_start_at_the_initialisation():
    network, (X, y) = bnn.mlp((3, 5, 2)), regression()
    target = bnn.target(network, bnn.Gaussian(start_noise=0.2), "normal", X, y)
    points = target.starting_points(50, key=KEY)
    assert np.abs(points[:, :-2]).max() <= 3**-0.5
    assert points[:, :-2].std(0).min() > 0.1
    np.testing.assert_allclose(points[:, -2:], np.log(0.2), rtol=1e-6)


def test_targets_of_one_network_are_of_one_form():
    """So that seeds and splits can be trained side by side."""
    first, second = (
        bnn.target(bnn.mlp((3, 5, 2)), "gaussian", "normal", *regression(seed=s)) for s in (0, 1)
    )
    static = [eqx.filter(t, eqx.is_array, inverse=True) for t in (first, second)]
    assert eqx.tree_equal(*static) is True


def test_double_precision():
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
def test_bad_input(change, message):
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
