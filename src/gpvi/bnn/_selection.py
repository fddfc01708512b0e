"""Choices by held-out data, before the training that counts: the noise of y, and for how long networks are fitted.

An ensemble of networks that maximise the posterior is trained without a fifth of the rows, and scored on it along the
way. This costs a few seconds: chains and generators cost ten times as much. The noise model is the one whose held-out
NLL is least at its best step; a network with two outputs to a column predicts where y varies more, and overfits sooner.
The number of steps is the one with the least held-out RMSE: beyond it lie networks that follow the noise of single
rows, from which chains would first have to find back. By the NLL it would be chosen too small: the noise that single
networks underestimate is what chains correct.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray

from gpvi.bnn._map_networks import maximised
from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.model import target
from gpvi.bnn.networks.network import Network
from gpvi.bnn.priors import Prior
from gpvi.methods import DeepEnsemble

HELD_OUT = 5
"""One row of so many is held out."""
CHECKS = 10
"""How often the networks are scored."""


class Curve(NamedTuple):
    """Scores on the held-out rows, along training."""

    steps: Float[np.ndarray, " k"]
    rmse: Float[np.ndarray, " k"]
    nll: Float[np.ndarray, " k"]


class Choice(NamedTuple):
    """Which of the likelihoods, and for how many steps its networks are fitted."""

    which: int
    steps: int


def chosen(curves: Sequence[Curve]) -> Choice:
    """Return the likelihood with the least NLL, and the steps with the least RMSE under it."""
    which = int(np.argmin([np.nanmin(curve.nll) for curve in curves]))
    best = curves[which]
    return Choice(which, int(best.steps[np.nanargmin(best.rmse)]))


def held_out_curve(
    network: Network,
    likelihood: Likelihood,
    prior: Prior | str,
    X: Num[np.ndarray, "n ..."],
    y: Num[np.ndarray, "n m"],
    *,
    members: int,
    steps: int,
    batch_size: int,
    key: PRNGKeyArray,
) -> Curve:
    """Fit an ensemble without a fifth of the rows, and score it on them."""
    split_key, key = jax.random.split(key)
    order = np.asarray(jax.random.permutation(split_key, len(X)))
    out, rest = np.split(order, [len(X) // HELD_OUT])
    posterior = target(network, likelihood, prior, X[rest], y[rest])
    with posterior.precision():
        size = min(batch_size, len(rest))
        path = maximised(posterior, DeepEnsemble(members=members), steps, size, key, CHECKS)
        kind = path.dtype
        scores = _scores(
            path, network, likelihood, jnp.asarray(X[out], kind), jnp.asarray(y[out], kind)
        )
    part = -(-steps // CHECKS)
    return Curve(part * np.arange(1, CHECKS + 1), *map(np.asarray, scores))


@eqx.filter_jit
def _scores(
    path: Float[Array, "k m d"],
    network: Network,
    likelihood: Likelihood,
    X: Float[Array, "b ..."],
    y: Float[Array, "b c"],
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Return RMSE and NLL of the mixture of all members, at each check."""

    def of_member(x: Float[Array, " d"]) -> tuple[Array, Array]:
        outputs, extra = network.apply(x[: network.size], X), x[network.size :]
        mean, _ = likelihood.moments(outputs, extra)
        return mean, likelihood.log_prob(outputs, extra, y)

    means, logs = jax.lax.map(jax.vmap(of_member), path)
    rmse = jnp.sqrt(((means.mean(1) - y) ** 2).mean((1, 2)))
    mixture = jax.nn.logsumexp(logs, 1) - jnp.log(path.shape[1])
    return rmse, -mixture.mean(1)
