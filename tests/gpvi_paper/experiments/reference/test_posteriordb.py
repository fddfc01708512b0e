"""Posteriors with reference draws: models against oracles and reference draws, errors, floors, and smoke runs."""

import itertools
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.integrate import solve_ivp
from typer.testing import CliRunner

from gpvi.cli import load_app
from gpvi_paper import records
from gpvi_paper.data import posteriordb
from gpvi_paper.experiments.reference import peers
from gpvi_paper.experiments.reference import posteriordb as bench
from gpvi_paper.experiments.reference import posteriordb_models as models
from gpvi_paper.experiments.reference.posteriordb import PosteriorDB, Problem
from made_data import LINE_NAME as NAME
from made_data import write_posteriordb

SHARED = Path(__file__).parents[5] / "shared" / "data" / "posteriordb"
DIRECTORY = Path(os.environ.get("GPVI_DATA", SHARED))
QUICK = (
    "eight_schools-eight_schools_centered",
    "kidiq-kidscore_momhsiq",
    "kilpisjarvi_mod-kilpisjarvi",
)


@pytest.fixture
def made(tmp_path):
    """A database of one posterior with two chains of reference draws."""
    write_posteriordb(tmp_path)
    return tmp_path


def difference(model, point, **arguments):
    """log p(point) − log p(0) of a model in unconstrained coordinates."""
    problem = Problem("", models.PosteriorModel(model, dict, ()), arguments, (), np.zeros((0, 0)))
    target = problem.target()
    with target.precision():
        values = jax.jit(jax.vmap(target.log_density))(jnp.stack([point, np.zeros_like(point)]))
        return float(values[0] - values[1])


class TestModels:
    """Against densities written out with SciPy; a scale σ = eᵘ adds u."""

    def test_eight_schools_centred(self):
        y, sigma = np.array([28.0, 8.0, -3.0]), np.array([15.0, 10.0, 16.0])

        def oracle(x):
            mu, tau, theta = x[0], math.exp(x[1]), x[2:]
            return (
                scipy.stats.norm.logpdf(mu, 0, 5)
                + scipy.stats.cauchy.logpdf(tau, 0, 5)
                + scipy.stats.norm.logpdf(theta, mu, tau).sum()
                + scipy.stats.norm.logpdf(y, theta, sigma).sum()
                + x[1]
            )

        x = np.array([1.5, 0.7, 3.0, -1.0, 0.2])
        wanted = oracle(x) - oracle(np.zeros(5))
        assert difference(models.eight_schools_centered, x, y=y, sigma=sigma) == pytest.approx(
            wanted, rel=1e-12
        )

    @pytest.mark.slow
    def test_gaussian_process_whose_noise_is_a_variance(self):
        x, y = np.array([-2.0, 0.0, 1.0]), np.array([0.3, -1.0, 2.0])

        def oracle(u):
            rho, alpha, sigma = np.exp(u)
            covariance = alpha**2 * np.exp(-((x[:, None] - x) ** 2) / (2 * rho**2))
            return (
                scipy.stats.gamma.logpdf(rho, 25, scale=1 / 4)
                + scipy.stats.norm.logpdf(alpha, 0, 2)
                + scipy.stats.norm.logpdf(sigma, 0, 1)
                + scipy.stats.multivariate_normal.logpdf(
                    y, np.zeros(3), covariance + sigma * np.eye(3)
                )
                + u.sum()
            )

        u = np.array([1.6, 0.4, -1.1])
        wanted = oracle(u) - oracle(np.zeros(3))
        assert difference(models.gp_regression, u, x=x, y=y) == pytest.approx(wanted, rel=1e-10)

    def test_diamonds(self):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(5, 2)), rng.normal(8, 1, size=5)

        def oracle(u):
            b, intercept, sigma = u[:2], u[2], math.exp(u[3])
            return (
                scipy.stats.norm.logpdf(b).sum()
                + scipy.stats.t.logpdf(intercept, 3, 8, 10)
                + scipy.stats.t.logpdf(sigma, 3, 0, 10)
                + scipy.stats.norm.logpdf(y, intercept + X @ b, sigma).sum()
                + u[3]
            )

        u = np.array([0.5, -0.3, 7.0, 0.4])
        wanted = oracle(u) - oracle(np.zeros(4))
        assert difference(models.diamonds, u, X=X, y=y) == pytest.approx(wanted, rel=1e-10)

    def test_forward_recursion_sums_over_all_paths(self):
        rng = np.random.default_rng(0)
        transition = np.log(rng.dirichlet((1, 1), 2)).astype(np.float32)
        emission = rng.normal(size=(5, 2)).astype(np.float32)
        paths = np.stack(np.meshgrid(*[(0, 1)] * 5), -1).reshape(-1, 5)
        each = [
            sum(emission[t, s] for t, s in enumerate(path))
            + sum(transition[a, b] for a, b in itertools.pairwise(path))
            for path in paths
        ]
        found = jax.jit(models.forward)(transition, emission)
        assert float(found) == pytest.approx(np.logaddexp.reduce(np.array(each)), rel=1e-5)

    @pytest.mark.parametrize(
        ("k_a", "K_m", "v"), [(0.75, 1.0, 0.45), (0.72, 0.004, 0.4), (1.2, 250.0, 10.0)]
    )
    def test_elimination_against_scipy(self, k_a, K_m, v):
        """Also where K_m is so small that the equation is stiff, and C passes it within a moment."""
        times, dose = np.arange(1, 21) / 2, 15.0

        def slope(t, log_c):
            return dose * k_a * np.exp(-k_a * t - log_c) - v / (K_m + np.exp(log_c))

        start = 1e-7 * min(1, K_m)
        exact = solve_ivp(
            slope, (start, 10), [np.log(dose * k_a * start)], "Radau", times, rtol=1e-8, atol=1e-9
        )
        with jax.enable_x64(True):
            arguments = [jnp.asarray(value) for value in (times, dose, k_a, K_m, v)]
            found = jax.jit(models.log_concentration)(*arguments)
        np.testing.assert_allclose(found, exact.y[0], atol=2e-5)

    def test_lags_are_those_of_an_autoregression(self):
        y = np.arange(6.0)
        found = models.MODELS["arK-arK"].arguments({"K": 2, "T": 6, "y": y})
        np.testing.assert_array_equal(found["lagged"], [[1, 0], [2, 1], [3, 2], [4, 3]])
        np.testing.assert_array_equal(found["y"], [2, 3, 4, 5])

    def test_every_case_has_a_model(self):
        assert list(models.MODELS) == list(bench.CASES)


def unconstrained(problem, target):
    """The reference draws in the coordinates of the target."""
    from numpyro.infer.util import unconstrain_fn

    model = problem.model
    sites = jax.eval_shape(target.model.constrain, target.initial)
    sizes = [math.prod(sites[name].shape) for name in model.quantities]

    def one(draw):
        parts = jnp.split(draw, np.cumsum(sizes)[:-1])
        values = {
            name: part.reshape(sites[name].shape)
            for name, part in zip(model.quantities, parts, strict=True)
        }
        values = model.recover(values, problem.arguments)
        u = unconstrain_fn(model.model, (), problem.arguments, values)
        return jnp.concatenate(
            [jnp.ravel(u[name]) for name in target.model.unravel(target.initial)]
        )

    return jax.jit(jax.vmap(one))(jnp.asarray(problem.reference))


@pytest.mark.skipif(not (DIRECTORY / "posteriors").is_dir(), reason="posteriordb is not here")
@pytest.mark.parametrize(
    "case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in bench.CASES]
)
def test_stein_identities_hold_for_the_reference_draws(case):
    """E[s] = 0 and E[u sᵀ] = −I for the score s of the true posterior, in whitened coordinates u.

    There are d + d² statistics; their z-scores are normal, so the largest is below 5 with probability > 0.999.
    """
    problem = Problem.read(DIRECTORY, case)
    target = problem.target()
    assert target.model is not None
    with target.precision():
        u = unconstrained(problem, target)
        score = jax.jit(lambda u: jax.lax.map(target.score, u, batch_size=500))(u)
        quantities = problem.quantities(jax.jit(jax.vmap(target.model.constrain))(u))
    np.testing.assert_allclose(quantities, problem.reference, rtol=1e-5, atol=1e-5)
    u, score = np.asarray(u), np.asarray(score)
    factor = np.linalg.cholesky(np.cov(u.T))
    white = np.linalg.solve(factor, (u - u.mean(0)).T).T
    score = score @ factor
    products = white[:, :, None] * score[:, None, :] + np.eye(target.dim)
    for values in (score, products):
        z = values.mean(0) / (values.std(0) / math.sqrt(len(values)))
        assert np.abs(z).max() < 5


class TestErrors:
    def test_a_shift_and_a_stretch(self):
        reference = np.random.default_rng(0).normal(size=(2_000, 3)) * [1, 10, 100]
        centre = reference.mean(0)
        moved = (reference - centre) * [1, 0.9, 1.2] + centre + [0, 0, 25]
        found = bench.errors(moved, bench.Reference.of(reference))
        assert found.mean == pytest.approx(25 / reference[:, 2].std())
        assert (found.narrowest, found.widest) == pytest.approx((0.9, 1.2))
        assert found.sd == pytest.approx(math.log(1.2))
        assert not found.tolerable

    @pytest.mark.parametrize(
        ("mean", "stretch", "k_hat", "passed"),
        [
            (0.04, 1.04, 0.6, True),
            (0.06, 1.0, 0.6, False),
            (0.0, 1.06, 0.6, False),
            (0.0, 0.94, 0.6, False),
            (0.0, 1.0, 0.8, False),
            (math.nan, 1.0, 0.0, False),
        ],
    )
    def test_tolerances(self, mean, stretch, k_hat, passed):
        reference = np.random.default_rng(0).normal(size=(2_000, 1))
        moved = (reference - reference.mean()) * stretch + reference.mean()
        moved += mean * reference.std()
        found = bench.compared(moved, bench.Reference.of(reference), None, k_hat, "_w")
        assert found["passed_w"] == passed

    def test_weights_undo_a_wrong_proposal(self):
        rng = np.random.default_rng(0)
        x = rng.normal(0.3, 1.2, size=(200_000, 1))
        weights = scipy.stats.norm.pdf(x) / scipy.stats.norm.pdf(x, 0.3, 1.2)
        exact = scipy.stats.norm.ppf((np.arange(10_000) + 0.5) / 10_000)[:, None]
        reference = bench.Reference.of(exact)
        assert not bench.errors(x, reference).tolerable
        assert bench.errors(x, reference, weights[:, 0]).mean < 0.02

    def test_a_standard_deviation_that_does_not_exist_is_not_compared(self):
        rng = np.random.default_rng(0)
        draws = np.stack([rng.normal(size=10_000), rng.pareto(2, 10_000)], 1)
        reference = bench.Reference.of(draws)
        assert reference.known.tolist() == [True, False]
        assert bench.errors(draws * [1, 2], reference).widest == pytest.approx(1)

    def test_floor_of_exact_normal_draws(self, getkey):
        """The mean of |N(0, 2/n)| is 2/√(πn); that of the log of the sd ratio is smaller by √2."""
        reference = np.random.default_rng(0).normal(size=(10_000, 1))
        found = bench.floors(reference, 10_000, key=getkey())
        assert found["mean_floor"] == pytest.approx(2 / math.sqrt(math.pi * 10_000), rel=0.4)
        assert found["sd_floor"] == pytest.approx(math.sqrt(2 / (math.pi * 10_000)), rel=0.4)


class TestPeers:
    """A conjugate normal model, whose posterior is N(1, 1/2)."""

    @staticmethod
    def model(y):
        import numpyro
        import numpyro.distributions as dist

        x = numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.deterministic("twice", 2 * x)
        numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)

    @pytest.mark.slow
    def test_a_guide_knows_the_density_of_its_draws(self, getkey):
        guide = peers.NumPyroGuide("AutoNormal", steps=1_000, particles=10)
        fitted = guide.fit(self.model, {"y": np.full(2, 2.0)}, key=getkey())
        draws = fitted.weighed(4_000, key=getkey())
        np.testing.assert_allclose(draws.sites["x"].mean(0), 1, atol=0.05)
        np.testing.assert_allclose(draws.sites["x"].var(0), 0.5, rtol=0.1)
        np.testing.assert_array_equal(draws.sites["twice"], 2 * draws.sites["x"])
        assert draws.log_ratios is not None
        evidence = 2 * scipy.stats.norm.logpdf(2.0, 0, math.sqrt(2))
        assert float(draws.log_ratios.mean()) == pytest.approx(evidence, abs=0.02)
        assert float(draws.log_ratios.std()) < 0.1

    @pytest.mark.slow
    def test_chains_go_on(self, getkey):
        fitted = peers.NumPyroNUTS(warmup=300, samples=500).fit(
            self.model, {"y": np.full(2, 2.0)}, key=getkey()
        )
        np.testing.assert_allclose(fitted.draws.sites["x"].mean(0), 1, atol=0.1)
        assert 0.1 < fitted.effective_share() < 3
        further = fitted.sample(1_000, key=getkey())
        assert further["twice"].shape == (1_000, 2)
        np.testing.assert_allclose(further["x"].var(0), 0.5, rtol=0.25)


@pytest.fixture
def kept_caches(monkeypatch):
    """What other tests have compiled is kept."""
    monkeypatch.setattr(jax, "clear_caches", lambda: None)


@pytest.mark.usefixtures("kept_caches")
class TestBench:
    @pytest.mark.parametrize(
        "label",
        [
            "AutoNormal",
            *(
                pytest.param(label, marks=pytest.mark.slow)
                for label in ("GPVI (default)", "NUTS", "AutoIAFNormal", "AutoBNAFNormal")
            ),
        ],
    )
    def test_smoke(self, label, made, tmp_path):
        record = PosteriorDB().reading(made).run(label, "smoke", (0,), False)
        assert set(record.rows) == {f"{NAME}/{m.key}" for m in PosteriorDB.metrics}
        measured = {row.partition("/")[2] for row, (v,) in record.rows.items() if math.isfinite(v)}
        assert {"passed", "mean_error", "sd_error", "ess", "seconds", "draw_seconds"} <= measured
        assert ("k_hat" in measured) == (label != "NUTS")
        assert record.command.endswith("--data-dir DIR")
        assert records.read(records.write(record, tmp_path / "out")).seeds == (0,)

    def test_a_method_that_fails_does_not_pass(self, made, monkeypatch):
        from gpvi.errors import DivergenceError

        def broken(*args, **options):
            raise DivergenceError("nothing was finite")

        monkeypatch.setattr(bench, "trained", broken)
        record = PosteriorDB().reading(made).run("NUTS", "smoke", (0,), False)
        assert record.rows[f"{NAME}/passed"] == (0.0,)
        assert math.isnan(record.rows[f"{NAME}/mean_error"][0])
        assert "nothing was finite" in record.notes[0]

    def test_the_command_says_where_to_get_the_data(self, tmp_path):
        for words in ([], ["--data-dir", str(tmp_path / "nowhere")]):
            result = CliRunner().invoke(
                load_app(), ["run", "posteriordb", "--preset", "smoke", *words]
            )
            assert result.exit_code == 2
            assert len(result.stderr.splitlines()) == 1
            assert posteriordb.SOURCE in result.stderr

    def test_a_preset_it_lacks(self):
        result = CliRunner().invoke(load_app(), ["run", "posteriordb", "--preset", "paper"])
        assert result.exit_code == 2
        assert "best, smoke" in result.stderr
