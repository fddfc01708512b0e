"""From a generator to Markov chains: exact on Gaussians, honest about what it did, refused where it cannot be right."""

import functools
import signal
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gpvi
from gpvi.diagnostics import mcmc
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators.gaussian import LinearMap
from gpvi.methods.carriers import Chains
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.proposals import WithProposals
from gpvi.posterior.start import Start
from gpvi.progress import NullMeter
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.training import refinement
from gpvi.training.loop import AbandonedError, Interrupts
from known_posteriors import NO_TRAINING

KEY = jax.random.key(0)
MEAN = np.array([3.0, -200.0, 0.1])
FACTOR = np.array([[0.01, 0.0, 0.0], [3.0, 5.0, 0.0], [0.0, 1.0, 0.5]])
LOG_Z = 1.5 * np.log(2 * np.pi) + np.log(0.01 * 5.0 * 0.5)


def normal_target(**options):
    """N(MEAN, FACTOR FACTORᵀ) without its constant, so that log Z is LOG_Z."""
    with jax.enable_x64(True):
        inverse, mean = jnp.asarray(np.linalg.inv(FACTOR)), jnp.asarray(MEAN)

    def log_density(x):
        return -0.5 * ((inverse @ (x - mean)) ** 2).sum()

    names = ("a", "b", "c")
    return gpvi.Target(log_density, dim=3, names=names, dtype="float64", **options)


def with_generator(target, weight, factor=FACTOR):
    """A posterior of x = MEAN + factor · weight · z."""
    with jax.enable_x64(True):
        model = LinearMap(jnp.asarray(weight), jnp.zeros(3))
        affine = Affine(jnp.asarray(MEAN), jnp.asarray(factor))
    method = gpvi.GPVI(generator=gpvi.generators.Linear())
    return Posterior(
        method, model, Start(affine), target.names, NO_TRAINING, target, explored=lambda: None
    )


def generator_of(posterior):
    """What the chains started from."""
    assert posterior.trained is not None
    return posterior.trained


def by_chain(posterior):
    return np.asarray(posterior.model.by_chain(posterior.particles))


def moments_agree(chains, mean, covariance):
    """Every mean and second moment within 4.5 Monte-Carlo errors."""
    centred = chains - mean
    first, second = np.tril_indices(chains.shape[-1])
    products = centred[..., first] * centred[..., second]
    for values, expected in ((centred, 0 * mean), (products, covariance[first, second])):
        error = mcmc.summary(values).mcse
        assert (np.abs(values.mean((0, 1)) - expected) < 4.5 * error).all()


@pytest.fixture(scope="module")
def exact():
    """Chains from the generator that is exact, refined once for all tests."""
    return with_generator(normal_target(), np.eye(3)).refine(key=KEY, draws=500, progress=False)


def test_the_chains_have_the_moments_of_the_posterior(exact):
    moments_agree(by_chain(exact), MEAN, FACTOR @ FACTOR.T)


def test_in_the_noise_of_an_exact_generator_they_are_standard_normal(exact):
    with jax.enable_x64(True):
        z = np.asarray(jax.vmap(generator_of(exact).generator.inverse)(exact.particles))
    moments_agree(np.asarray(exact.model.by_chain(z)), np.zeros(3), np.eye(3))
    history = exact.training.history
    assert history["acceptance"][refinement.BLOCK :].mean() > 0.75
    assert exact.model.divergences == 0
    assert mcmc.summary(by_chain(exact)).rhat.max() < 1.02


def test_what_was_done_is_told_and_counted(exact):
    [note] = exact.training.notes
    assert "the generator's noise" in note
    assert f"{exact.training.gradients:,} gradients" in note
    leapfrogs = exact.training.history["leapfrogs"]
    assert exact.training.gradients == round(4 * leapfrogs.sum(dtype=float))
    assert exact.training.steps == len(leapfrogs) == refinement.BLOCK + 500
    assert exact.method == gpvi.NUTS(draws=500, warmup=refinement.BLOCK, max_doublings=8)
    assert exact.size == 2_000


def test_the_generator_is_kept_beside_the_chains(exact):
    x, log_q = generator_of(exact).sample_and_log_prob(5, key=KEY)
    assert x.shape == (5, 3)
    np.testing.assert_allclose(generator_of(exact).log_prob(x), log_q, rtol=1e-9)
    assert repr(exact).startswith("<Posterior by NUTS from GPVI in 3 dimensions")
    for asked in (exact.refine, functools.partial(exact.resample, 5)):
        with pytest.raises(NotAvailableError, match=r"\.trained"):
            asked(key=KEY)


def test_both_witnesses_agree_and_give_the_evidence(exact):
    found = exact.diagnose(key=KEY)
    assert found.verdict.level == "not explored"
    assert "importance weights agree" in found.verdict.reason
    assert abs(found.agreement.errors) < 5
    assert abs(found.agreement.log_evidence - LOG_Z) < 0.01
    assert "by bridge sampling" in str(found)


def test_chains_that_missed_a_part_are_contradicted(exact):
    """Chains of the lower half of b only, mixing perfectly."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((4_000, 3))
    z[:, 0] = -np.abs(z[:, 0])
    with jax.enable_x64(True):
        half = Chains(jnp.asarray(z), jnp.zeros(4_000, bool), jnp.asarray(1_000), 4)
    method = gpvi.NUTS(draws=1_000)
    verdict = generator_of(exact).with_chains(method, half, NO_TRAINING).diagnose(key=KEY).verdict
    assert verdict.level == "do not trust"
    assert "the mean of a is" in verdict.reason
    assert "below" in verdict.reason


def test_a_saved_refined_posterior_has_both(exact, tmp_path):
    exact.save(tmp_path / "refined.gpvi")
    loaded = gpvi.load(tmp_path / "refined.gpvi")
    np.testing.assert_array_equal(loaded.particles, exact.particles)
    assert loaded.training.gradients == exact.training.gradients
    assert loaded.training.notes == exact.training.notes
    new, old = (generator_of(posterior).sample(7, key=KEY) for posterior in (loaded, exact))
    np.testing.assert_array_equal(new, old)
    again = loaded.with_target(normal_target())
    assert generator_of(again).target is again.target
    found = again.diagnose(key=KEY).agreement
    assert found == exact.diagnose(key=KEY).agreement


def test_arviz_has_chains_and_divergences(exact):
    pytest.importorskip("arviz")
    data = exact.to_arviz(key=KEY, draws=10_000)
    assert data["posterior"]["a"].shape == (4, 500)
    assert data["sample_stats"]["diverging"].shape == (4, 500)
    np.testing.assert_allclose(np.asarray(data["posterior"]["b"]), by_chain(exact)[..., 1])


@pytest.mark.slow
def test_the_key_decides(exact):
    posterior = generator_of(exact)
    first, same, other = (
        np.asarray(posterior.refine(key=key, draws=250, progress=False).particles)
        for key in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.isin(first, other).any()


@pytest.mark.slow
def test_bad_coordinates_are_left(monkeypatch):
    """Both are tried where the first seem poor; the chains run where a gradient gives more effective draws."""
    monkeypatch.setattr(refinement, "WELL_MIXED_SHARE", 10.0)
    target = normal_target()
    squeezed = np.linalg.inv(FACTOR) * np.array([[1.0], [1e-3], [1.0]])
    for posterior, where in (
        (with_generator(target, np.eye(3)), None),
        (with_generator(target, squeezed @ FACTOR), "whitened coordinates"),
    ):
        refined = posterior.refine(key=KEY, draws=250, progress=False)
        [note] = refined.training.notes
        assert "fewer effective draws for a gradient" in note
        assert where is None or f"chains in {where}" in note
        spent = round(4 * refined.training.history["leapfrogs"].sum(dtype=float))
        assert refined.training.gradients > spent
        moments_agree(by_chain(refined), MEAN, FACTOR @ FACTOR.T)


@pytest.mark.slow
def test_jumps_to_draws_of_a_generator_weigh_modes_that_no_trajectory_connects():
    """0.3 N(−9, 1) + 0.7 N(9, 1) in float64, jumps to N(0, 10²): shares and means are right, proposals are counted."""

    def log_density(x):
        left, right = -0.5 * (x[0] + 9) ** 2, -0.5 * (x[0] - 9) ** 2
        return jnp.logaddexp(jnp.log(0.3) + left, jnp.log(0.7) + right)

    target = gpvi.Target(log_density, dim=1, dtype="float64")
    with jax.enable_x64(True):
        generator = LinearMap(jnp.full((1, 1), 10.0), jnp.zeros(1))
        density = WithProposals(target, Affine.identity(1, target.dtype), generator)
        starts = jnp.full((4, 1), -9.0)
        walk = refinement.Walk("test", density, lambda u: u, starts, key=KEY)
        walk.until(1_000, refinement.Relay(NullMeter(), 0, 1))
        chains = walk.chains()
    x = np.asarray(chains.by_chain(chains.drawn))
    right = (x > 0).astype(float)
    for values, expected in ((right, 0.7), (right * x, 0.7 * 9.0)):
        effective = mcmc.effective_sample_size(values.reshape(8, 500, 1))
        error = values.std() / np.sqrt(effective[0])
        assert error < 0.1 * abs(expected)
        assert abs(values.mean() - expected) < 4.5 * error
    _, training = walk.record()
    leapfrogs = round(4 * training.history["leapfrogs"].sum(dtype=float))
    assert training.gradients == leapfrogs + 4 * training.steps


@pytest.mark.slow
def test_a_mixture_of_generators_is_refined_to_the_right_shares():
    """0.3 and 0.7 of two Gaussians 25 apart, from components of equal weight that are half an sd off."""

    def log_density(x):
        left, right = -0.5 * ((x + 9) ** 2).sum(), -0.5 * ((x - 9) ** 2).sum()
        return jnp.logaddexp(jnp.log(0.3) + left, jnp.log(0.7) + right)

    target = gpvi.Target(log_density, dim=2)
    mixture = gpvi.generators.Mixture(2, gpvi.generators.FullRank())
    model = mixture.build(2, key=KEY, dtype="float32")
    places = jnp.asarray([[-9.0, -8.5], [9.0, 9.5]])
    model = eqx.tree_at(lambda own: own.affines.location, model, places)
    start, method = Start(Affine.identity(2, target.dtype)), gpvi.GPVI(generator=mixture)
    posterior = Posterior(
        method, model, start, target.names, NO_TRAINING, target, explored=lambda: None
    )
    refined = posterior.refine(key=0, progress=False)
    right = (by_chain(refined)[..., :1] > 0).astype(float)
    error = right.std() / np.sqrt(mcmc.effective_sample_size(right.reshape(8, -1, 1))[0])
    assert error < 0.03
    assert abs(right.mean() - 0.7) < 4.5 * error
    found: Any = refined.diagnose(key=KEY).agreement
    assert abs(found.log_evidence - np.log(2 * np.pi)) < 4.5 * found.log_evidence_se


@pytest.mark.slow
def test_every_jump_to_a_draw_of_the_posterior_is_accepted():
    density = normal_target()
    with jax.enable_x64(True):
        exact = LinearMap(jnp.asarray(FACTOR), jnp.asarray(MEAN))
        own = WithProposals(density, Affine.identity(3, density.dtype), exact)
        starts = jnp.asarray(MEAN + np.zeros((2, 3)))
        walk = refinement.Walk("test", own, lambda u: u, starts, key=KEY)
        walk.until(250, refinement.Relay(NullMeter(), 0, 1))
    _, training = walk.record()
    assert (training.history["jumped"] > 0.999).all()


@pytest.mark.slow
def test_exact_goes_on_until_the_chains_agree():
    """A funnel's log-scale, N(0, 1), whose generator alone is a little off."""

    def log_density(x):
        return -0.5 * x[0] ** 2 - 0.5 * x[1:] @ x[1:] * jnp.exp(-x[0]) - x[0]

    target = gpvi.Target(log_density, dim=3)
    method = gpvi.GPVI(generator=gpvi.generators.Triangular())
    options = {"steps": 300, "progress": False}
    posterior = gpvi.fit(target, method, key=0, exact=True, **options)
    found = mcmc.summary(by_chain(posterior))
    assert found.rhat.max() <= 1.01
    assert min(found.ess_bulk.min(), found.ess_tail.min()) >= refinement.EXACT_ESS
    scale = by_chain(posterior)[..., :1]
    moments_agree(scale, np.zeros(1), np.eye(1))
    alone = gpvi.fit(target, method, key=0, **options)
    np.testing.assert_array_equal(
        generator_of(posterior).sample(5, key=KEY), alone.sample(5, key=KEY)
    )


@pytest.mark.slow
def test_training_ends_with_the_round_whose_chains_mix(tmp_path, monkeypatch):
    """Its chains go on, none is counted twice, and the same call finds the same again; another call is another run."""
    monkeypatch.setattr("gpvi.methods.gpvi.ROUNDS", (200, 400))
    monkeypatch.setattr("gpvi.training.stopping.SETTLED_SHARE", 2.0)

    def skewed(x):
        return x[0] - x[0] ** 4 / 4 - 0.5 * (x[1] - x[0]) ** 2

    head = gpvi.generators.SplineFlow(2, 4, 5.0, 8)
    method = gpvi.GPVI(generator=gpvi.generators.Triangular(head=head), particles=128)
    fit = functools.partial(
        gpvi.fit, gpvi.Target(skewed, dim=2), method, key=0, checkpoint=tmp_path, progress=False
    )
    first = fit(exact=True)
    trained = generator_of(first).training
    assert (trained.steps, trained.gradients) == (200, 200 * 128)
    assert "chains in its noise mix" in trained.chosen
    leapfrogs = first.training.history["leapfrogs"]
    assert first.training.gradients == round(4 * leapfrogs.sum(dtype=float))
    again = fit(exact=True)
    np.testing.assert_array_equal(again.particles, first.particles)
    assert again.training.notes == first.training.notes
    with pytest.raises(gpvi.errors.OtherRunError, match="number of steps"):
        fit()


def test_an_interrupted_look_interrupts_the_run(exact, monkeypatch):
    """The look has a handler of its own for Ctrl-C, and hands it on."""
    monkeypatch.setattr(
        refinement.Walk, "until", lambda self, *_: setattr(self, "interrupted", True)
    )
    method, density = exact.trained.method, Whitened(exact.target, exact.affine)
    with jax.enable_x64(True), Interrupts(term=False) as interrupted:
        state = method.init(density, optax.identity(), key=KEY)
        with pytest.raises(AbandonedError):
            refinement.Lookout(density, key=KEY)(state)
        assert interrupted() == signal.SIGINT


class Record(NullMeter):
    def __init__(self):
        self.done, self.totals = [], []

    def start(self, total, label):
        self.totals.append(total)

    def update(self, done, message):
        self.done.append(done)


@pytest.mark.slow
def test_progress_counts_warm_up_and_draws(exact):
    record = Record()
    generator_of(exact).refine(key=KEY, draws=300, progress=record)
    assert record.totals == [750]
    assert record.done == sorted(record.done)
    assert record.done[-1] == 750
    assert len(set(record.done)) > 20


@pytest.mark.slow
def test_a_budget_that_is_spent_is_told(monkeypatch):
    monkeypatch.setattr(refinement, "EXACT_ESS", 10**9)
    monkeypatch.setattr(refinement, "MOST_GRADIENTS", 10_000)
    with pytest.warns(gpvi.errors.TrainingWarning, match="fell short"):
        posterior = gpvi.fit(
            normal_target(), gpvi.FullRankVI(), key=0, exact=True, steps=100, progress=False
        )
    assert 0 < (posterior.training.gradients or 0) < 20_000
    assert "fell short" in posterior.training.notes[0]


def regression(**options):
    return gpvi.Target(
        log_likelihood=lambda x, y: -0.5 * (y - x[0]) ** 2,
        log_prior=lambda x: -0.5 * x @ x,
        data=np.ones(8, np.float32),
        dim=1,
        **options,
    )


FIT = {"key": 0, "steps": 10, "progress": False, "init": None}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("target", "method", "match"),
    [
        (regression, lambda: gpvi.SVGD(particles=4), "no generator"),
        (
            regression,
            lambda: gpvi.GPVI(generator=gpvi.generators.MLP((2,), "tanh")),
            "may fold.*Triangular",
        ),
        (lambda: regression(batch_size=4), gpvi.FullRankVI, "in batches of 4.*without batch_size"),
    ],
)
def test_what_chains_cannot_start_from_is_refused(target, method, match, exact):
    """By `fit` before a step is taken, and by `refine`."""
    run = functools.partial(gpvi.fit, target(), method(), exact=True, **FIT)
    if not exact:
        run = functools.partial(gpvi.fit(target(), method(), **FIT).refine, key=KEY)
    with pytest.raises(NotAvailableError, match=match):
        run()


def test_a_loaded_posterior_needs_its_target(exact):
    alone = Posterior(
        generator_of(exact).method,
        generator_of(exact).model,
        exact.start,
        ("a", "b", "c"),
        NO_TRAINING,
    )
    with pytest.raises(NotAvailableError, match=r"with_target"):
        alone.refine(key=KEY)


@pytest.mark.parametrize("option", [{"draws": 0}, {"chains": 0}])
def test_counts_are_checked(exact, option):
    with pytest.raises(InputError, match=r"must be a whole number"):
        generator_of(exact).refine(key=KEY, **option)
