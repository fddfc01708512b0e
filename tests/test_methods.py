"""The contract of every method: a method joins by one row that states what it reaches."""

import functools
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.directions import KSDDirection
from gpvi.errors import NotAvailableError
from gpvi.generators import Linear, Residual, SplineFlow, Triangular
from gpvi.jacobian import Helper
from gpvi.methods import METHODS


class Row(NamedTuple):
    """A method with the steps it gets, and how far off its moments may be in units of the posterior.

    `mean` bounds ‖L^{-1}(m̂ − m)‖ and `covariance` ‖L^{-1} Ĉ L^{-T} − I‖ (Frobenius), C = LLᵀ.
    """

    method: Any
    mean: float
    covariance: float
    steps: int = 400


def through(**options) -> dict[str, Any]:
    return {"generator": Linear(), "particles": 32, "learning_rate": 0.03} | options


CRITIC = KSDDirection(hidden_width=16, penalty=0.5, learning_rate=1e-2, critic_steps=5)
ROWS = {
    "gpvi-pathwise": Row(gpvi.GPVI(**through()), 0.1, 0.15),
    **{
        f"gpvi-functional-{solver}": Row(
            gpvi.GPVI(**through(gradient="functional", solver=solver)), 0.15, 0.3
        )
        for solver in ("block", "dense", "bicgstab", "gmres")
    },
    "gpvi-functional-helper": Row(
        gpvi.GPVI(**through(gradient="functional", solver=Helper(32, 1e-2))), 0.15, 0.3
    ),
    "gpvi-functional-tail": Row(
        gpvi.GPVI(**through(gradient="functional", generator=Triangular(1, "affine", (8,)))),
        0.15,
        0.3,
    ),
    **{
        f"gpvi-l2-{solver}": Row(gpvi.GPVI(**through(gradient="l2", solver=solver)), 0.05, 0.1)
        for solver in ("block", "dense", "bicgstab", "gmres")
    },
    "svgd": Row(gpvi.SVGD(particles=32), 0.05, 0.4),
    "gfsd": Row(gpvi.GFSD(particles=32), 0.05, 0.9),
    "gfsf": Row(gpvi.GFSF(particles=32), 0.05, 0.4),
    "ksd": Row(gpvi.KSD(particles=32, critic=CRITIC), 0.15, 0.6),
    "amortized-svgd": Row(gpvi.AmortizedSVGD(**through()), 0.15, 0.3),
    "amortized-gfsd": Row(gpvi.AmortizedGFSD(**through()), 0.15, 0.9),
    "amortized-gfsf": Row(gpvi.AmortizedGFSF(**through()), 0.15, 0.4),
    "amortized-ksd": Row(gpvi.AmortizedKSD(**through(critic=CRITIC)), 0.15, 0.6),
}
every_method = pytest.mark.parametrize("name", ROWS)
SAME_EQUATIONS = [
    f"gpvi-{g}-{s}" for g in ("functional", "l2") for s in ("dense", "bicgstab", "gmres")
]
"""The systems of "block", solved in another way: they differ in rounding alone."""
quickly = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SAME_EQUATIONS)) for n in ROWS]
)
N = 24


class Regression(NamedTuple):
    """Bayesian linear regression: a Gaussian posterior in closed form, with data to take batches of."""

    features: np.ndarray
    response: np.ndarray

    @property
    def mean(self):
        return self.covariance @ self.features.T @ self.response

    @property
    def covariance(self):
        return np.linalg.inv(self.features.T @ self.features + np.eye(self.features.shape[1]))

    def errors(self, draws):
        """How far the moments of draws are off, in units of the posterior."""
        draws, root = np.asarray(draws, float), np.linalg.cholesky(self.covariance)
        mean = np.linalg.solve(root, draws.mean(0) - self.mean)
        inverse = np.linalg.inv(root)
        covariance = inverse @ np.cov(draws.T, bias=True) @ inverse.T
        return np.linalg.norm(mean), np.linalg.norm(covariance - np.eye(len(root)))

    def target(self, dtype="float32", traced=None):
        """`traced` counts how often the likelihood is traced."""

        def log_likelihood(x, batch):
            if traced is not None:
                traced.append(1)
            return -0.5 * (batch[1] - batch[0] @ x) ** 2

        return gpvi.Target(
            log_likelihood=log_likelihood,
            log_prior=lambda x: -0.5 * x @ x,
            data=(self.features.astype(dtype), self.response.astype(dtype)),
            dim=self.features.shape[1],
            dtype=dtype,
        )


@functools.cache
def regression(dim=2) -> Regression:
    """A posterior whose coordinates correlate, well away from the standard normal that training starts at."""
    rng = np.random.default_rng(dim)
    mixing = np.eye(dim) + 0.8 * np.eye(dim, k=1)
    features = 0.35 * rng.standard_normal((N, dim)) @ mixing
    response = features @ np.linspace(2.0, -1.0, dim) + rng.standard_normal(N)
    return Regression(features, response)


@functools.cache
def fitted(name, dtype="float32", batch_size=None, seed=0):
    row = ROWS[name]
    return gpvi.fit(
        regression().target(dtype),
        row.method,
        key=jax.random.key(seed),
        steps=row.steps,
        batch_size=batch_size,
        progress=False,
        init=None,
    )


def draws(posterior, seed=1):
    """Many new draws, or all the particles."""
    n = 20_000 if posterior.method.generative else posterior.method.particles
    return posterior.sample(n, key=jax.random.key(seed))


def test_every_method_has_a_row():
    assert {type(row.method) for row in ROWS.values()} == set(METHODS)
    gpvis = [row.method for row in ROWS.values() if isinstance(row.method, gpvi.GPVI)]
    assert {method.gradient for method in gpvis} == {"pathwise", "functional", "l2"}


def test_where_training_starts_is_outside_every_tolerance():
    start = np.random.default_rng(0).standard_normal((20_000, 2))
    mean, covariance = regression().errors(start)
    assert mean > 2 * max(row.mean for row in ROWS.values())
    assert covariance > 1.2 * max(row.covariance for row in ROWS.values())


@every_method
def test_moments_shapes_and_record(name):
    row, posterior = ROWS[name], fitted(name)
    x = draws(posterior)
    assert x.shape[1:] == (2,)
    assert x.dtype == posterior.dtype == np.dtype("float32")
    mean, covariance = regression().errors(x)
    assert mean < row.mean
    assert covariance < row.covariance
    history = posterior.training.history
    assert row.method.headline in history or "direction" in history
    assert {"log_density", "gradient_norm", "rejected"} <= history.keys()
    for values in history.values():
        assert values.shape == (row.steps,)
        assert np.isfinite(values).all()
    assert posterior.training.notes == ()


@quickly
def test_mini_batches_in_double_precision(name):
    """Batches of a third of the data reach the same posterior, in float64 in a float32 session."""
    assert jnp.zeros(()).dtype == np.dtype("float32")
    row, posterior = ROWS[name], fitted(name, "float64", 8)
    x = draws(posterior)
    assert x.dtype == posterior.dtype == np.dtype("float64")
    assert all(leaf.dtype == "float64" for leaf in jax.tree.leaves(posterior.model) if leaf.ndim)
    mean, covariance = regression().errors(x)
    assert mean < 2 * row.mean
    assert covariance < 1.5 * row.covariance


@pytest.mark.parametrize("name", SAME_EQUATIONS)
def test_solvers_agree_to_the_end_of_training(name):
    gradient = name.split("-")[1]
    expected = draws(fitted(f"gpvi-{gradient}-block"))
    np.testing.assert_allclose(draws(fitted(name)), expected, atol=2e-3)


@quickly
def test_keys_programs_and_files(name, monkeypatch, tmp_path):
    """One program serves every chunk, and here also fits with other keys: they differ in its arguments alone."""
    module = importlib.import_module("gpvi.fit")
    compile_chunk, programs = module.compile_chunk, []

    def compile_once(*args):
        programs[:] = programs or [compile_chunk(*args)]
        return programs[0]

    monkeypatch.setattr(module, "compile_chunk", compile_once)
    traced, compiled, seen = [], [], []
    target = regression().target(traced=traced)

    def on_compile(event, duration_secs, **_):
        if "backend_compile" in event:
            compiled.append(event)

    def fit(seed):
        watch = lambda event: seen.append((len(traced), len(compiled)))  # noqa: E731
        key, row = jax.random.key(seed), ROWS[name]
        return gpvi.fit(
            target, row.method, key=key, steps=6, progress=False, init=None, callbacks=[watch]
        )

    jax.monitoring.register_event_duration_secs_listener(on_compile)
    try:
        first = fit(0)
    finally:
        jax.monitoring.unregister_event_duration_listener(on_compile)
    assert len(seen) == 6
    assert min(seen[0]) > 0
    assert seen[-1] == seen[1]
    assert seen[-1][0] == seen[0][0]

    again, other = fit(0), fit(1)
    key, n = jax.random.key(3), 8
    x = np.asarray(first.sample(n, key=key))
    np.testing.assert_array_equal(x, again.sample(n, key=key))
    assert not np.allclose(x, other.sample(n, key=key), atol=1e-4)
    assert not np.allclose(x, first.sample(n, key=jax.random.key(4)), atol=1e-4)

    first.save(tmp_path / "saved")
    loaded = gpvi.load(tmp_path / "saved")
    assert x.tobytes() == np.asarray(loaded.sample(n, key=key)).tobytes()
    assert loaded.method == first.method


@pytest.mark.parametrize("name", ["gpvi-pathwise", "svgd", "amortized-gfsf"])
def test_a_batch_of_all_data_is_the_full_batch(name):
    """The same sums in another order, so the same posterior up to rounding."""
    target, row = regression().target("float64"), ROWS[name]
    options = {"key": jax.random.key(0), "steps": 60, "progress": False, "init": None}
    full = gpvi.fit(target, row.method, **options)
    batched = gpvi.fit(target, row.method, batch_size=N, **options)
    x, y = (np.asarray(p.sample(32, key=jax.random.key(1))) for p in (full, batched))
    np.testing.assert_allclose(x, y, atol=1e-8)
    assert np.abs(x).max() > 0.5


@pytest.mark.parametrize(
    ("method", "mean", "covariance"),
    [
        (gpvi.GPVI(**through(particles=128, learning_rate=0.05)), 0.25, 0.3),
        (gpvi.GPVI(**through(gradient="l2", particles=128, learning_rate=0.05)), 0.25, 0.15),
        (gpvi.GPVI(**through(gradient="functional", particles=128, learning_rate=0.05)), 0.25, 0.6),
    ],
    ids=["pathwise", "l2", "functional"],
)
def test_ten_dimensions(method, mean, covariance):
    case = regression(10)
    posterior = gpvi.fit(
        case.target(), method, key=jax.random.key(0), steps=600, progress=False, init=None
    )
    start = case.errors(np.random.default_rng(0).standard_normal((20_000, 10)))
    found = case.errors(draws(posterior))
    assert found[0] < mean < 0.5 * start[0]
    assert found[1] < covariance < 0.5 * start[1]


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
    assert posterior.diagnose(key=jax.random.key(2)).effective_share > 0.9


# ------------------------------------------------------------------------- what a method cannot do

DENSITY_FREE = [name for name, row in ROWS.items() if not row.method.density]
REQUESTS = {
    "sample_and_log_prob": lambda p, key: p.sample_and_log_prob(3, key=key),
    "log_prob": lambda p, key: p.log_prob(jnp.zeros((3, 2))),
    "diagnose": lambda p, key: p.diagnose(key=key),
    "resample": lambda p, key: p.resample(3, key=key),
}


@pytest.mark.parametrize("name", DENSITY_FREE)
def test_methods_without_density_name_one_with(name, getkey):
    posterior = fitted(name)
    for what, ask in REQUESTS.items():
        with pytest.raises(NotAvailableError, match="GPVI") as caught:
            ask(posterior, getkey())
        assert what in str(caught.value)
        assert type(posterior.method).__name__ in str(caught.value)
    with pytest.raises(NotAvailableError, match=r"33 draws are not available.*at most 32.*GPVI"):
        posterior.sample(33, key=getkey())
    assert posterior.sample(32, key=getkey()).shape == (32, 2)


@pytest.mark.parametrize("name", ["gpvi-pathwise", "gpvi-functional-tail", "amortized-svgd"])
def test_methods_with_density_give_all_of_it(name, getkey):
    posterior = fitted(name)
    x, log_q = posterior.sample_and_log_prob(50, key=getkey())
    np.testing.assert_allclose(posterior.log_prob(x), log_q, atol=1e-3)
    found = posterior.diagnose(key=getkey())
    assert found.density == "exact"
    evidence = log_evidence(regression())
    assert found.elbo < evidence + 4 * found.elbo_se
    assert found.elbo > evidence - 0.2
    assert posterior.resample(5, key=getkey()).shape == (5, 2)


def log_evidence(case):
    """∫ exp(−½‖y − Xw‖² − ½‖w‖²) dw, at the mode and by its Gaussian."""
    residual = case.response - case.features @ case.mean
    top = -0.5 * residual @ residual - 0.5 * case.mean @ case.mean
    return top + 0.5 * np.linalg.slogdet(2 * np.pi * case.covariance)[1]


@pytest.mark.parametrize("generator", [Residual(1, (4,)), Residual(2, (4,), learn_scale=True)])
def test_residual_has_no_log_prob_elsewhere(generator, getkey):
    method = gpvi.AmortizedSVGD(generator=generator, particles=16)
    posterior = gpvi.fit(
        regression().target(), method, key=getkey(), steps=2, progress=False, init=None
    )
    assert np.isfinite(posterior.sample_and_log_prob(4, key=getkey())[1]).all()
    with pytest.raises(NotAvailableError, match=r"sample_and_log_prob.*Triangular"):
        posterior.log_prob(jnp.zeros((3, 2)))
