r"""Tempered sequential Monte Carlo on islands (Del Moral, Doucet & Jasra 2006).

Each island brings n particles from a wide end r, Student's t of scale s in every coordinate, to the posterior along
π_λ ∝ r^{1−λ} p^λ. One temperature weights them by (p/r)^{λ'−λ}, resamples, and moves each by Hamiltonian Monte Carlo;
λ' is the largest that keeps a share of the weights' effective size. The product of the mean weights estimates Z,
without bias if temperatures and step sizes are given beforehand, and nearly so here, where they are adapted. So a large
estimate is hard to explain by chance, and a small one may mean that particles could not follow.

Where summits are known that particles do not meet on the way, half of r lies around them and around the modes that were
met: each then has its particles from the beginning.

Resampling is BlackJAX's. The leapfrog steps are written here: they keep log p and its gradient apart from those of r,
so that a change of temperature costs no evaluation.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray, Scalar

from gpvi._compute.brief import brief
from gpvi._compute.noise import divided, normal
from gpvi.targets.density import Density

DEGREES = 3
"""Degrees of freedom of the wide end: with Gaussian tails the weights of a heavy-tailed posterior are unbounded."""
LEAPFROGS = 2
"""Leapfrog steps of a move: many short moves mix the energy better than few long ones."""
FEWEST_MOVES, MOST_MOVES = 2, 20
"""Moves at each temperature."""
FORGOTTEN = 0.5
"""Moves go on until the energy of a particle has this correlation with that before the first."""
LAST_MOVES = 16
"""Moves after the last temperature."""
ACCEPTANCE = 0.8
"""The mean acceptance that step sizes are adapted to."""
JITTER = 0.5
"""Step sizes differ between particles by up to this much on a log scale, for modes of different widths."""
SMALLEST_STEP = 1e-12
"""The smallest increase of λ, where log p at the wide end spans many powers of ten."""
MOST_TEMPERATURES = 500
"""An island that has not arrived then is given up."""
AT_ONCE = 25
"""Temperatures between two looks at the keyboard."""


class Summits(eqx.Module):
    """Places that the wide end covers beside the region around the origin.

    Parameters
    ----------
    centres
        Where they are.
    widths
        The scale of Student's t in each coordinate there.
    """

    centres: Float[Array, "*k m d"]
    widths: Float[Array, "*k m d"]

    @classmethod
    def none(cls, dim: int, dtype: DTypeLike) -> "Summits":
        """No such places."""
        return cls(jnp.zeros((0, dim), dtype), jnp.ones((0, dim), dtype))


class Islands(eqx.Module):
    """The particles of all islands, and where each island is on its way.

    Parameters
    ----------
    points
        The particles.
    log_density, score
        log p and its gradient there; −∞ and 0 where one of them is not finite.
    temperature
        λ of each island: 0 at the wide end, 1 at the posterior.
    log_evidence
        log Z of each island, so far.
    rounded_off
        What rounding has taken from that sum: log p may be near 10⁵ at all particles, or −10⁹ at the wide end.
    step_size
        The leapfrog step of each island, in standard deviations of its particles.
    acceptance
        The mean acceptance of its last move.
    scale
        s, the width of its wide end.
    summits
        What else its wide end covers.
    gradients
        Evaluations of log p and its gradient at one particle, so far; in each island.
    """

    points: Float[Array, "*k n d"]
    log_density: Float[Array, "*k n"]
    score: Float[Array, "*k n d"]
    temperature: Float[Array, "*k"]
    log_evidence: Float[Array, "*k"]
    rounded_off: Float[Array, "*k"]
    step_size: Float[Array, "*k"]
    acceptance: Float[Array, "*k"]
    scale: Float[Array, "*k"]
    summits: Summits
    gradients: Float[Array, "*k"]

    @property
    def shared_summits(self) -> Summits:
        """The summits without the axis of the islands, which have the same ones."""
        return jax.tree.map(lambda each: each[0], self.summits)

    @property
    def arrived(self) -> Bool[Array, "*k"]:
        """Whether each island has reached the posterior."""
        return self.temperature >= 1


def begin(
    density: Density,
    scales: Float[Array | np.ndarray, " k"],
    particles: int,
    summits: Summits | None = None,
    *,
    key: PRNGKeyArray,
) -> Islands:
    """Draw the particles of each island from its wide end."""
    dim, dtype, count = density.dim, density.dtype, len(scales)
    scales = jnp.asarray(scales, dtype)
    summits = Summits.none(dim, dtype) if summits is None else summits
    noise = normal(key, ((1 + DEGREES) * count * particles, dim), dtype)
    first, *others = noise.reshape(1 + DEGREES, count, particles, dim)
    standard = first * jnp.sqrt(DEGREES / sum(other**2 for other in others))
    which = _components(particles, len(summits.centres))
    centres, widths = jax.vmap(_parts, (None, 0))(summits, scales)
    points = centres[:, which] + widths[:, which] * standard
    log_density, score = _evaluated(density, points.reshape(-1, dim))
    log_density = log_density.reshape(count, particles)
    ones = jnp.ones(count, dtype)
    return Islands(
        points,
        log_density,
        score.reshape(points.shape),
        temperature=0 * ones,
        log_evidence=0 * ones,
        rounded_off=0 * ones,
        step_size=0.5 * ones,
        acceptance=ACCEPTANCE * ones,
        scale=scales,
        summits=jax.tree.map(lambda each: jnp.stack([each] * count), summits),
        gradients=particles * ones,
    )


def advance(
    density: Density, islands: Islands, kept_share: float | Scalar, *, key: PRNGKeyArray
) -> Islands:
    """Bring every island that has not arrived to its next temperature.

    A step of λ leaves `kept_share` of the effective size of the weights: near 1 there are many temperatures.
    """
    keys = jax.random.split(key, len(islands.scale))

    def onwards() -> Islands:
        moved = jax.vmap(_next_temperature, (None, 0, 0, None, 0))(
            density, islands, _spread_of_neighbours(islands), kept_share, keys
        )

        def kept(old: Array, new: Array) -> Array:
            return jnp.where(islands.arrived.reshape(-1, *(1,) * (old.ndim - 1)), old, new)

        return jax.tree.map(kept, islands, moved)

    return jax.lax.cond(islands.arrived.all(), lambda: islands, onwards)


def temper(
    density: Density,
    scales: Float[Array | np.ndarray, " k"],
    particles: int,
    kept_share: float,
    summits: Summits | None = None,
    *,
    key: PRNGKeyArray,
) -> Islands:
    """Bring islands all the way from their wide ends to the posterior."""
    start_key, key = divided(key, 2)
    scales = jnp.asarray(scales, density.dtype)
    islands = _begin(density, scales, particles, summits, start_key)
    kept = jnp.asarray(kept_share)
    for done in range(0, MOST_TEMPERATURES, AT_ONCE):
        islands = _advance_many(density, islands, kept, jnp.asarray(done), key)
        if all_arrived(islands):
            break
    return islands


def all_arrived(islands: Islands) -> bool:
    """Whether all have reached the posterior; on the host, where it takes no program."""
    return bool((np.asarray(islands.temperature) >= 1).all())


@brief
def _begin(
    density: Density,
    scales: Float[Array, " k"],
    particles: int,
    summits: Summits | None,
    key: PRNGKeyArray,
) -> Islands:
    return begin(density, scales, particles, summits, key=key)


@brief
def _advance_many(
    density: Density,
    islands: Islands,
    kept_share: Scalar,
    done: Int[Array, ""],
    key: PRNGKeyArray,
) -> Islands:
    """Go on by `AT_ONCE` temperatures, or until all islands have arrived."""

    def on_the_way(carry: tuple[Islands, Int[Array, ""]]) -> Bool[Array, ""]:
        islands, number = carry
        return ~islands.arrived.all() & (number < done + AT_ONCE)

    def one(carry: tuple[Islands, Int[Array, ""]]) -> tuple[Islands, Int[Array, ""]]:
        islands, number = carry
        own_key = jax.random.fold_in(key, number)
        return advance(density, islands, kept_share, key=own_key), number + 1

    return jax.lax.while_loop(on_the_way, one, (islands, done))[0]


def _spread_of_neighbours(islands: Islands) -> Float[Array, "k d"]:
    """The spread of each coordinate over the island before, by mean absolute deviations.

    Steps in proportion to an island's own spread would depend on where its particles are: moves would not leave the
    density invariant, and log Z of heavy-tailed posteriors comes out .1 too large.
    """
    deviation = jnp.abs(islands.points - islands.points.mean(1, keepdims=True)).mean(1)
    return jnp.roll(deviation + jnp.finfo(deviation.dtype).tiny, 1, axis=0)


def _next_temperature(
    density: Density,
    island: Islands,
    spread: Float[Array, " d"],
    kept_share: float | Scalar,
    key: PRNGKeyArray,
) -> Islands:
    """Reweight, resample and move one island: `island` has no axis for the islands."""
    from blackjax.smc.resampling import systematic

    resampling_key, move_key = jax.random.split(key)
    log_ratio = island.log_density - _log_wide(island, island.points)
    increase = _increase(log_ratio, 1 - island.temperature, kept_share)
    temperature = jnp.where(
        increase >= 0.9999 * (1 - island.temperature), 1.0, island.temperature + increase
    )
    finite = jnp.isfinite(log_ratio)
    largest = jnp.max(log_ratio, initial=-jnp.inf, where=finite)
    log_weights = jnp.where(finite, increase * (log_ratio - largest), -jnp.inf)
    rows = systematic(resampling_key, jax.nn.softmax(log_weights), len(log_weights))
    growth = logsumexp(log_weights) - math.log(len(log_weights)) + increase * largest
    log_evidence, rounded_off = _sum(island.log_evidence, growth + island.rounded_off)
    points = island.points[rows]
    resampled = Islands(
        points,
        island.log_density[rows],
        island.score[rows],
        temperature.astype(points.dtype),
        log_evidence,
        rounded_off,
        island.step_size,
        island.acceptance,
        island.scale,
        island.summits,
        island.gradients,
    )
    return _mixed(density, resampled, spread, move_key)


def _sum(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """a + b, and what rounding has taken from it (Møller 1965; Knuth 1969)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _mixed(
    density: Density, island: Islands, spread: Float[Array, " d"], key: PRNGKeyArray
) -> Islands:
    """Move the particles until they have forgotten their energy: it is no longer correlated with what it was."""
    before = _log_tempered(island)
    fewest = jnp.where(island.arrived, LAST_MOVES, FEWEST_MOVES)

    def remembers(carry: tuple[Islands, Int[Array, ""]]) -> Bool[Array, ""]:
        now, number = carry
        correlated = _correlation(before, _log_tempered(now)) > FORGOTTEN
        return (number < fewest) | (correlated & (number < MOST_MOVES))

    def once(carry: tuple[Islands, Int[Array, ""]]) -> tuple[Islands, Int[Array, ""]]:
        now, number = carry
        return _move(density, now, spread, jax.random.fold_in(key, number)), number + 1

    return jax.lax.while_loop(remembers, once, (island, jnp.zeros((), jnp.int32)))[0]


def _log_tempered(island: Islands) -> Float[Array, " n"]:
    """λ log p + (1 − λ) log r at the particles of one island."""
    cooled = island.temperature
    return cooled * island.log_density + (1 - cooled) * _log_wide(island, island.points)


def _correlation(a: Float[Array, " n"], b: Float[Array, " n"]) -> Scalar:
    a, b = a - a.mean(), b - b.mean()
    return (a * b).mean() / jnp.sqrt((a**2).mean() * (b**2).mean() + jnp.finfo(a.dtype).tiny)


def _increase(log_ratio: Float[Array, " n"], left: Scalar, kept_share: float | Scalar) -> Scalar:
    """The largest step of λ that keeps the effective share of the weights, by bisection on a log scale."""
    finite = jnp.isfinite(log_ratio)
    centred = jnp.where(finite, log_ratio - jnp.where(finite, log_ratio, -jnp.inf).max(), -jnp.inf)
    wanted = kept_share * finite.sum()

    def keeps(step: Scalar) -> Bool[Array, ""]:
        scaled = jnp.where(finite, step * centred, -jnp.inf)
        return jnp.exp(2 * logsumexp(scaled) - logsumexp(2 * scaled)) >= wanted

    def halve(_: Int[Array, ""], ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = 0.5 * (low + high)
        good = keeps(jnp.exp(middle))
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    low = jnp.full_like(left, math.log(SMALLEST_STEP))
    low, _ = jax.lax.fori_loop(0, 30, halve, (low, jnp.log(left)))
    return jnp.where(keeps(left), left, jnp.minimum(jnp.exp(low), left))


def _move(
    density: Density, island: Islands, spread: Float[Array, " d"], key: PRNGKeyArray
) -> Islands:
    """Move every particle of one island by Hamiltonian Monte Carlo, and adapt the step size."""
    momentum_key, jitter_key, accept_key = jax.random.split(key, 3)
    points, dtype = island.points, island.points.dtype
    n, dim = points.shape
    cooled, heated = island.temperature, 1 - island.temperature
    jitter = jax.random.uniform(jitter_key, (n, 1), dtype, -JITTER, JITTER)
    step = island.step_size * jnp.exp(jitter) * spread
    momentum = normal(momentum_key, (n, dim), dtype)

    def force(x: Float[Array, "n d"], score: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return cooled * score + heated * _wide_score(island, x)

    def energy(x, log_density, momentum) -> Float[Array, " n"]:
        log_tempered = cooled * log_density + heated * _log_wide(island, x)
        return 0.5 * (momentum**2).sum(1) - log_tempered

    def leapfrog(carry, _):
        x, _, score, p = carry
        p = p + 0.5 * step * force(x, score)
        x = x + step * p
        log_density, score = _evaluated(density, x)
        return (x, log_density, score, p + 0.5 * step * force(x, score)), None

    carry = (points, island.log_density, island.score, momentum)
    (x, log_density, score, p), _ = jax.lax.scan(leapfrog, carry, None, length=LEAPFROGS)
    fall = energy(points, island.log_density, momentum) - energy(x, log_density, p)
    probability = jnp.where(jnp.isnan(fall), 0.0, jnp.exp(jnp.minimum(fall, 0.0)))
    accepted = jax.random.uniform(accept_key, (n,), dtype) < probability
    acceptance = probability.mean()
    return Islands(
        jnp.where(accepted[:, None], x, points),
        jnp.where(accepted, log_density, island.log_density),
        jnp.where(accepted[:, None], score, island.score),
        island.temperature,
        island.log_evidence,
        island.rounded_off,
        island.step_size * jnp.exp(acceptance - ACCEPTANCE),
        acceptance,
        island.scale,
        island.summits,
        island.gradients + n * LEAPFROGS,
    )


def _components(particles: int, summits: int) -> Int[np.ndarray, " n"]:
    """Which part of the wide end each particle comes from: 0, or for half of them the summits in turn."""
    which = np.zeros(particles, int)
    if summits:
        near = particles // 2
        which[particles - near :] = 1 + np.arange(near) % summits
    return which


def _parts(summits: Summits, scale: Scalar) -> tuple[Float[Array, "p d"], Float[Array, "p d"]]:
    """Centres and widths of the parts of one wide end."""
    dim = summits.centres.shape[-1]
    return (
        jnp.concatenate([jnp.zeros((1, dim), scale.dtype), summits.centres]),
        jnp.concatenate([jnp.full((1, dim), scale), summits.widths]),
    )


def _log_wide(island: Islands, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    """log r of one island: a mixture of independent Student's t, weighted by the particles that each part has sent."""
    return logsumexp(_log_parts(island, x), axis=1)


def _log_parts(island: Islands, x: Float[Array, "n d"]) -> Float[Array, "n p"]:
    centres, widths = _parts(island.summits, island.scale)
    particles = len(island.log_density)
    counts = np.bincount(_components(particles, len(centres) - 1), minlength=len(centres))
    with np.errstate(divide="ignore"):
        log_shares = np.log(counts / particles)
    log_norm = (
        math.lgamma((DEGREES + 1) / 2)
        - math.lgamma(DEGREES / 2)
        - 0.5 * math.log(DEGREES * math.pi)
    )
    squares = ((x[:, None] - centres) / widths) ** 2
    bodies = -0.5 * (DEGREES + 1) * jnp.log1p(squares / DEGREES)
    return (bodies + log_norm - jnp.log(widths)).sum(-1) + log_shares.astype(x.dtype)


def _wide_score(island: Islands, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """∇ log r."""
    centres, widths = _parts(island.summits, island.scale)
    away = x[:, None] - centres
    slopes = -(DEGREES + 1) * away / (DEGREES * widths**2 + away**2)
    return (jax.nn.softmax(_log_parts(island, x), axis=1)[..., None] * slopes).sum(1)


def _evaluated(
    density: Density, x: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    """log p and its gradient at each row, −∞ and 0 where one of them is not finite."""
    value, score = jax.vmap(jax.value_and_grad(density.log_density))(x)
    finite = jnp.isfinite(value) & jnp.isfinite(score).all(1)
    return jnp.where(finite, value, -jnp.inf), jnp.where(finite[:, None], score, 0.0)
