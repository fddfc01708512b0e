"""What is a method's own, beyond the contract that all share (test_contract.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gpvi
from cases import regression
from gpvi.errors import NotAvailableError
from gpvi.generators import FullRank, Linear, Residual, SplineFlow, Triangular
from gpvi.solvers.helper import Helper
from selection import slow

SMALL = {"generator": Linear(), "particles": 32, "learning_rate": 0.03}


def fitted(method, dtype="float32", steps=400):
    return gpvi.fit(
        regression().target(dtype),
        method,
        key=jax.random.key(0),
        steps=steps,
        progress=False,
        init=None,
    )


def draws(posterior):
    return np.asarray(posterior.sample(20_000, key=jax.random.key(1)))


@pytest.mark.parametrize(
    "options",
    [
        {"solver": Helper(32, 1e-2)},
        slow({"generator": Triangular(1, "affine", (8,))}),
        slow({"solver": "dense"}),
        slow({"solver": "bicgstab"}),
        slow({"solver": "gmres"}),
    ],
    ids=["helper", "tail", "dense", "bicgstab", "gmres"],
)
def test_the_functional_gradient_by_every_solver(options):
    method = gpvi.GPVI(**(SMALL | {"gradient": "functional"} | options))
    mean, covariance = regression().errors(draws(fitted(method)))
    assert mean < 0.15
    assert covariance < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["functional", "l2"])
@pytest.mark.parametrize("solver", ["dense", "bicgstab", "gmres"])
def test_solvers_agree_to_the_end_of_training(gradient, solver):
    """The systems of "block", solved in another way: they differ in rounding alone."""
    of = lambda solver: gpvi.GPVI(**SMALL, gradient=gradient, solver=solver)  # noqa: E731
    np.testing.assert_allclose(draws(fitted(of(solver))), draws(fitted(of("block"))), atol=2e-3)


@pytest.mark.slow
def test_a_spline_learns_what_no_affine_map_can():
    """Two modes at ±2: the default generator, small, has its mass at both and little between."""
    target = gpvi.Target(lambda x: jnp.logaddexp(-2 * (x[0] - 2) ** 2, -2 * (x[0] + 2) ** 2), dim=1)
    flow = Triangular(head=SplineFlow(layers=1, knots=8, interval=5.0, width=8))
    method = gpvi.GPVI(generator=flow, particles=256, learning_rate=0.02)
    posterior = gpvi.fit(
        target, method, key=jax.random.key(0), steps=600, progress=False, init=None
    )
    x = np.asarray(posterior.sample(20_000, key=jax.random.key(1)))[:, 0]
    assert abs((x > 0).mean() - 0.5) < 0.1
    assert abs(np.abs(x).mean() - 2) < 0.1
    assert (np.abs(x) < 1).mean() < 0.06
    share = posterior.diagnose(key=jax.random.key(2)).effective_share
    assert share is not None and share > 0.9


@pytest.mark.parametrize(
    "generator",
    [
        Residual(1, (4,)),
        pytest.param(Residual(2, (4,), learn_scale=True), marks=pytest.mark.slow),
    ],
)
def test_residual_has_no_log_prob_elsewhere(generator, getkey):
    method = gpvi.AmortizedSVGD(generator=generator, particles=16)
    posterior = gpvi.fit(
        regression().target(), method, key=getkey(), steps=2, progress=False, init=None
    )
    assert np.isfinite(posterior.sample_and_log_prob(4, key=getkey())[1]).all()
    with pytest.raises(NotAvailableError, match=r"sample_and_log_prob.*Triangular"):
        posterior.log_prob(jnp.zeros((3, 2)))


def test_pathfinder_draws_its_noise_by_a_key_of_its_own(monkeypatch):
    """The key that builds the generator draws nothing else."""
    keys, build = [], FullRank.build

    def recording(self, dim, *, key, dtype):
        keys.append(key)
        return build(self, dim, key=key, dtype=dtype)

    monkeypatch.setattr(FullRank, "build", recording)
    target, key = regression().target("float32"), jax.random.key(0)
    noise = gpvi.Pathfinder(draws=7).init(target, optax.identity(), key=key).auxiliary.noise
    assert noise.shape == (7, target.dim)
    for used in (key, *keys):
        assert not np.array_equal(noise, jax.random.normal(used, noise.shape, noise.dtype))
