"""Steps of Gaussian families beside NumPyro's automatic guides, with the same model, draws, optimiser and answer.

Both keep what a user would see of every step: NumPyro its loss, `gpvi.fit` all terms that a method reports.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from gpvi.methods import FullRankVI, MeanFieldVI
from gpvi.methods.base import State
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target
from gpvi_paper.bench import peers
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import Compiled, in_turns

PAIRS = {"AutoNormal": MeanFieldVI, "AutoMultivariateNormal": FullRankVI}
STEPS, PARTICLES, RATE = 2_000, 10, 0.02
TOLERANCE = 0.1
"""How far the means, in standard deviations, and the logarithms of the standard deviations may be apart."""


def results(setting: Setting) -> Iterator[Result]:
    """Time the training on a logistic regression. It needs --peers."""
    if not setting.peers:
        return
    rows, dim, steps = (20, 3, 10) if setting.quick else (500, 20, STEPS)
    inputs, outcomes = _data(rows, dim)

    def log_density(x: Array) -> Array:
        logits = inputs @ x
        return (outcomes * logits - jax.nn.softplus(logits)).sum() - 0.5 * (x**2).sum()

    def model() -> None:
        import numpyro
        from numpyro.distributions import Bernoulli, Normal

        x: Any = numpyro.sample("x", Normal(jnp.zeros(dim), 1.0).to_event(1))
        numpyro.sample("y", Bernoulli(logits=inputs @ x), obs=outcomes)

    target = Target(log_density, dim=dim)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    for guide, family in PAIRS.items():
        row = f"{guide}, {rows} rows, d = {dim}"
        if not setting.wants(guide):
            continue
        (train, arguments), moments = peers.numpyro_guide(model, guide, optimizer, PARTICLES, steps)
        method = family(gradient="pathwise", particles=PARTICLES)
        contenders = {
            "gpvi": _ours(method, target, optimizer, steps),
            f"NumPyro {guide}": Compiled(train, *arguments),
        }
        ours, theirs = contenders.values()
        if not setting.quick:
            _agree(_moments(ours.result), moments(theirs.result), guide)
        timings = {
            name: timing.per(steps)
            for name, timing in in_turns(contenders, setting.seconds).items()
        }
        yield setting.timed(row, "gpvi", timings)
        yield setting.timed(row, f"NumPyro {guide}", timings, "gpvi")


def _data(rows: int, dim: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((rows, dim))
    chances = 1 / (1 + np.exp(-inputs @ rng.standard_normal(dim)))
    return jnp.asarray(inputs, jnp.float32), jnp.asarray(
        rng.uniform(size=rows) < chances, jnp.float32
    )


def _ours(
    method: MeanFieldVI | FullRankVI,
    target: Target,
    optimizer: optax.GradientTransformation,
    steps: int,
) -> Compiled:
    density = Whitened(target, Affine.identity(target.dim, target.dtype))
    state = method.init(density, optimizer, key=jax.random.key(0))

    def train(state: State) -> tuple[State, Mapping[str, Array]]:
        keys = jax.random.split(jax.random.key(1), steps)
        return jax.lax.scan(
            lambda state, key: method.step(density, optimizer, state, None, key=key), state, keys
        )

    return Compiled(train, state)


def _moments(result: tuple[State, Any]) -> tuple[Array, Array]:
    """Return the mean b and the standard deviations of x = b + L z, from the images of the origin and the axes."""
    generator = result[0].learner.model
    dim = generator.dim
    origin = generator(jnp.zeros(dim))
    factor = jax.vmap(generator)(jnp.eye(dim)) - origin
    return origin, jnp.sqrt((factor**2).sum(0))


def _agree(ours: tuple[Array, Array], theirs: tuple[Array, Array], guide: str) -> None:
    """Raise an error if the two found different answers: their times could not be compared."""
    apart = jnp.abs(ours[0] - theirs[0]) / theirs[1], jnp.abs(jnp.log(ours[1] / theirs[1]))
    worst = float(jnp.maximum(*apart).max())
    if not worst <= TOLERANCE:
        raise AssertionError(f"{guide} finds another Gaussian: {worst:.2g} deviations apart.")
