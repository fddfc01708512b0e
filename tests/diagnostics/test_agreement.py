"""Two witnesses: bridge sampling and the comparison of moments, on Gaussians with closed forms."""

import numpy as np
import pytest

from gpvi.diagnostics.agreement import Compared, bridged, compared
from gpvi.diagnostics.importance import Importance
from gpvi.diagnostics.verdict import Verdict, of_chains, of_two_witnesses

LOG_Z = 3.7


def log_normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def correlated(rng, chains, n, rho=0.9):
    """Chains of N(0, 1) whose effective size is (1 − ρ)/(1 + ρ) of their length."""
    x = np.empty((chains, n))
    x[:, 0] = rng.standard_normal(chains)
    for i in range(1, n):
        x[:, i] = rho * x[:, i - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(chains)
    return x


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_bridge_sampling_finds_log_z_and_its_error(rho):
    """Forty repetitions: unbiased, with the spread that it claims; q is narrow, so E_q[p/q] has no finite variance."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        at_p, at_q = correlated(rng, 4, 500, rho), 0.6 * rng.standard_normal(1_000)
        ratios = [LOG_Z + log_normal(x, 0, 1) - log_normal(x, 0, 0.6) for x in (at_p, at_q)]
        found.append(bridged(*ratios))
    values, errors = np.array(found).T
    z = (values - LOG_Z) / errors
    assert abs(z.mean()) < 4 / np.sqrt(40)
    assert 0.6 < z.std() < 1.5


def test_bridge_sampling_where_q_is_p():
    rng = np.random.default_rng(0)
    value, error = bridged(
        np.full((4, 100), LOG_Z) + 1e-6 * rng.standard_normal((4, 100)), np.full(100, LOG_Z)
    )
    assert abs(value - LOG_Z) < 1e-5
    assert error < 1e-5


def witnesses(seed):
    """Chains of N(0, 1) in three dimensions, and draws of N(0, 1.3²) with their weights."""
    rng = np.random.default_rng(seed)
    chains = np.stack([correlated(rng, 4, 1_000, 0.5) for _ in range(3)], -1)
    x = 1.3 * rng.standard_normal((4_000, 3))
    return chains, x, (log_normal(x, 0, 1) - log_normal(x, 0, 1.3)).sum(1)


def test_witnesses_of_one_posterior_agree():
    largest = [abs(compared(*witnesses(seed), ("a", "b", "c")).errors) for seed in range(20)]
    assert max(largest) < 4.5
    assert np.median(largest) > 0.5


@pytest.mark.parametrize(
    ("change", "quantity", "shift"),
    [
        (lambda c: c + np.array([0, 0.4, 0]), "the mean of b", 0.4),
        (lambda c: c * np.array([1, 1, 0.7]), "the sd of c", None),
    ],
)
def test_the_difference_is_named_and_measured(change, quantity, shift):
    chains, x, log_weights = witnesses(0)
    found = compared(change(chains), x, log_weights, ("a", "b", "c"))
    assert found.quantity == quantity
    assert abs(found.errors) > 5
    if shift is not None:
        assert abs(found.shift - shift) < 0.1


GOOD = Verdict("good", "R̂ = 1.001, 2000 effective draws, no divergences")
RELIABLE = Importance(0.0, 0.1, 0.0, 0.1, 0.5, 0.3, 0.0, 4_000)


def test_the_verdict_over_both():
    judged = of_two_witnesses(GOOD, RELIABLE, Compared("the mean of tau", -0.31, -7.2))
    assert judged.level == "do not trust"
    assert "the mean of tau is 0.31 sd below" in judged.reason
    assert "7 combined standard errors" in judged.reason
    agree = of_two_witnesses(GOOD, RELIABLE, Compared("the mean of tau", 0.01, 2.0))
    assert agree.level == "good"
    assert "within 2.0 standard errors" in agree.reason


def test_unreliable_weights_neither_contradict_nor_confirm():
    for poor in (RELIABLE._replace(k_hat=0.9), RELIABLE._replace(effective_share=0.01)):
        judged = of_two_witnesses(GOOD, poor, Compared("the mean of tau", -0.31, -7.2))
        assert judged.level == "no fault seen"
        assert GOOD.reason in judged.reason
        assert "train longer" in judged.remedy.lower()


def test_uneven_weights_contradict_but_do_not_confirm():
    uneven = RELIABLE._replace(effective_share=0.2)
    for errors, level in ((2.0, "no fault seen"), (7.2, "do not trust")):
        assert (
            of_two_witnesses(GOOD, uneven, Compared("the sd of tau", 0.31, errors)).level == level
        )


def test_agreement_does_not_make_up_for_divergences():
    """The remedy of refined chains is one that they have: `refine` takes no acceptance rate."""
    alone = of_chains(1.001, 2_000.0, 3)
    judged = of_two_witnesses(alone, RELIABLE, Compared("the sd of tau", 0.01, 2.0))
    assert (judged.level, judged.reason) == ("do not trust", alone.reason)
    assert "acceptance=" in alone.remedy
    assert "acceptance=" not in judged.remedy
    assert "train longer" in judged.remedy
