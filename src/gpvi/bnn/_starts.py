r"""Networks that fit their data already, for a generator to start from.

Training a generator at a random network is a race: while the weights are still far from fitting, the entropy that each
of them gains by spreading, and the noise σ that grows to explain the residuals, both flatten the likelihood, and the
generator may settle where noise explains what the network should. The fewer draws a step has, the more often: of
mixtures of five generators with 8 draws each, on 80 points with a gap, two of two had such members. So each generator
starts at a network of its own that climbed log p(y | w) + log p(w) first. σ is held at `NOISE` of the standardised y
meanwhile: a network that is free to choose σ would, of 30 data, choose to interpolate them, and its generator stay
there.

The same race goes on when the noise is set free. So a generator first learns how far each weight may spread with σ held
at `HELD`, and only then σ. On 20 points of a curve with noise a tenth of its height, five generators that had σ from
the beginning ended with 0.7 to 1.5 of the height for it.
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

NOISE = 0.1
"""σ while networks climb, over the standard deviation of y; with noise that depends on x, the least."""
HELD, HELD_SPREAD = 0.15, 0.05
"""σ while a generator learns how far the weights may spread, likewise, and of its logarithm the standard deviation."""


def fitted_networks(
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
    """So many networks, each after a climb of its own, with the likelihood's coordinates where they start."""
    firm = target(network, _firm(likelihood, y), prior, X, y, dtype=dtype)
    with firm.precision():
        weights = _climbed(firm, DeepEnsemble(members=number), steps, batch_size, key)
        extra = likelihood.start(network.outputs(X))
        own = jnp.broadcast_to(extra, (number, len(extra)))
        return jnp.concatenate([weights[:, : network.size], own], 1)


def held(likelihood: Likelihood, y: Num[np.ndarray, "n ..."]) -> Likelihood:
    """The likelihood with its noise held low, of the same coordinates; itself where it learns none for all x."""
    if type(likelihood) is not Gaussian or not likelihood.extra(1):
        return likelihood
    noise = HELD * _scale(y)
    return Gaussian(noise=LogNormal(noise, HELD_SPREAD), start_noise=noise)


def _firm(likelihood: Likelihood, y: Num[np.ndarray, "n ..."]) -> Likelihood:
    """The likelihood with noise that cannot vanish, and no coordinates of its own."""
    if type(likelihood) is Gaussian:
        return Gaussian(noise=NOISE * _scale(y))
    if isinstance(likelihood, Heteroscedastic):
        return dataclasses.replace(likelihood, floor=NOISE * _scale(y))
    return likelihood


def _scale(y: Num[np.ndarray, "n ..."]) -> float:
    """The standard deviation of y about its mean, to two digits, as it is a constant of what is compiled."""
    found = float(f"{np.sqrt(np.var(y, 0).mean()):.2g}")
    return found if found > 0 and np.isfinite(found) else 1.0


@eqx.filter_jit
def _climbed(
    posterior: Target, ensemble: DeepEnsemble, steps: int, batch_size: int | None, key: PRNGKeyArray
) -> Float[Array, "m w"]:
    """The steps of an ensemble in one small program: a start is no run, and needs none of what watches over one."""
    start_key, batch_key = jax.random.split(key)
    optimizer = ensemble.default_optimizer(steps)

    def step(state: State, number: Int[Array, ""]) -> tuple[State, None]:
        batch = None
        if batch_size is not None:
            size = len(jax.tree.leaves(posterior.data)[0])
            batch = posterior.batch(batch_indices(number, size, batch_size, key=batch_key))
        return ensemble.step(posterior, optimizer, state, batch, key=key)[0], None

    begun = ensemble.init(posterior, optimizer, key=start_key)
    return jax.lax.scan(step, begun, jnp.arange(steps))[0].learner.model.positions
