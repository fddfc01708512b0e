r"""MAP networks: networks that fit the data already, from which generators start.

A generator that starts at a random network may settle in an optimum that attributes the signal to noise. While the
weights are still far from fitting, both the entropy that they gain by spreading and the noise σ that grows to explain
the residuals flatten the likelihood. The fewer draws a step has, the more often this happens: of mixtures of five
generators with 8 draws each, on 80 points with a gap, two of two had such members. So each generator starts at its own
network, which maximised log p(y | w) + log p(w) first. Meanwhile σ is fixed at `MAP_NOISE` of the standard deviation of
y: a network that learned σ as well would interpolate 30 data, and its generator would stay there.

The same can happen once σ is learned. So a generator first learns how far each weight may spread with σ kept near
`LOW_NOISE`, and learns σ afterwards. On 20 points of a curve with noise a tenth of its height, five generators that
learned σ from the beginning estimated 0.7 to 1.5 of the height.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, Num, PRNGKeyArray

from gpvi.bnn.likelihoods import Gaussian, Heteroscedastic, Likelihood, LogNormal
from gpvi.bnn.model import target
from gpvi.bnn.networks.network import Network
from gpvi.bnn.priors import Prior
from gpvi.methods import DeepEnsemble
from gpvi.methods.base import State
from gpvi.targets.minibatch import batch_indices
from gpvi.targets.target import Target

MAP_NOISE = 0.1
"""σ of MAP networks, relative to the standard deviation of y; the least σ if the noise depends on x."""
LOW_NOISE, LOW_NOISE_SPREAD = 0.15, 0.05
"""The prior of σ while a generator learns how far weights may spread: its median, relative to the standard deviation of
y, and the standard deviation of log σ."""


def map_networks(
    network: Network,
    likelihood: Likelihood,
    prior: Prior | str,
    X: Num[np.ndarray, "n ..."],
    y: Num[np.ndarray, "n ..."],
    *,
    number: int,
    steps: int,
    batch_size: int | None,
    key: PRNGKeyArray,
    dtype: DTypeLike | None = None,
) -> Float[Array, "m d"]:
    """Train MAP networks from different initialisations; the likelihood's parameters are where they start."""
    posterior = target(network, with_fixed_noise(likelihood, y), prior, X, y, dtype=dtype)
    with posterior.precision():
        weights = maximised(posterior, DeepEnsemble(members=number), steps, batch_size, key)[-1]
        extra = likelihood.start(network.outputs(X))
        repeated = jnp.broadcast_to(extra, (number, len(extra)))
        return jnp.concatenate([weights[:, : network.size], repeated], 1)


def with_low_noise(likelihood: Likelihood, y: Num[np.ndarray, "n ..."]) -> Likelihood:
    """Return the likelihood with a prior that keeps σ low, if it is a Gaussian that learns σ; else itself."""
    if type(likelihood) is not Gaussian or not likelihood.extra(1):
        return likelihood
    noise = LOW_NOISE * _scale(y)
    return Gaussian(noise=LogNormal(noise, LOW_NOISE_SPREAD), start_noise=noise)


def with_fixed_noise(likelihood: Likelihood, y: Num[np.ndarray, "n ..."]) -> Likelihood:
    """Return the likelihood with a σ that is fixed, or, if it depends on x, cannot vanish; else itself."""
    if type(likelihood) is Gaussian:
        return Gaussian(noise=MAP_NOISE * _scale(y))
    if isinstance(likelihood, Heteroscedastic):
        return dataclasses.replace(likelihood, floor=MAP_NOISE * _scale(y))
    return likelihood


def _scale(y: Num[np.ndarray, "n ..."]) -> float:
    """Return the standard deviation of y, to two digits, since it is a constant of the compiled program."""
    scale = float(f"{np.sqrt(np.var(y, 0).mean()):.2g}")
    return scale if scale > 0 and np.isfinite(scale) else 1.0


@eqx.filter_jit
def maximised(
    posterior: Target,
    ensemble: DeepEnsemble,
    steps: int,
    batch_size: int | None,
    key: PRNGKeyArray,
    checks: int = 1,
) -> Float[Array, "k m d"]:
    """Return the members of a deep ensemble at k evenly spaced steps, the last of them at the end.

    This is one small program, without the supervision that `gpvi.fit` adds. The number of steps is rounded up to a
    multiple of k.
    """
    start_key, batch_key = jax.random.split(key)
    part = -(-steps // checks)
    optimizer = ensemble.default_optimizer(part * checks)

    def step(state: State, number: Int[Array, ""]) -> tuple[State, None]:
        batch = None
        if batch_size is not None:
            size = len(jax.tree.leaves(posterior.data)[0])
            batch = posterior.batch(batch_indices(number, size, batch_size, key=batch_key))
        return ensemble.step(posterior, optimizer, state, batch, key=key)[0], None

    def run(state: State, first: Int[Array, ""]) -> tuple[State, Float[Array, "m d"]]:
        state = jax.lax.scan(step, state, first + jnp.arange(part))[0]
        return state, state.learner.model.positions

    start = ensemble.init(posterior, optimizer, key=start_key)
    return jax.lax.scan(run, start, part * jnp.arange(checks))[1]
