"""The diagnosis of a posterior: the numbers that speak for and against it, as a table that ends in the verdict.

A row of the table is a field of `Diagnosis` and a line of its `_rows`; the number is computed in `diagnose_generator`,
`diagnose_particles` or `diagnose_chains`. Thresholds are in `verdict.py`.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpvi._compute.brief import brief
from gpvi._compute.noise import divided, folded
from gpvi._html import paragraph, table
from gpvi.diagnostics import mcmc, stein, verdict, witness
from gpvi.diagnostics.agreement import Agreement, bridged, compared
from gpvi.diagnostics.folding import conditioning, fold_fraction
from gpvi.diagnostics.images import Image, unvisited_image
from gpvi.diagnostics.importance import (
    DEFAULT_DRAWS,
    WeightedDraws,
    Weighting,
    draw_weighted,
    importance,
    weighting,
)
from gpvi.diagnostics.missing_mass import InitialEvidence, missing_mass, wide_gaussian_evidence
from gpvi.diagnostics.sampling import log_densities, log_prob, noise
from gpvi.diagnostics.verdict import (
    EVEN_SHARE,
    GOOD_K_HAT,
    HOPELESS_K_HAT,
    RELIABLE_K_HAT,
    Verdict,
)
from gpvi.diagnostics.witness import Witness
from gpvi.errors import NotAvailableError
from gpvi.exploration import necks
from gpvi.exploration.necks import Neck
from gpvi.exploration.search import Exploration, log_mean
from gpvi.generators import Preconditioned
from gpvi.methods.carriers import Chains, Particles, Population
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.density import Density, scores
from gpvi.targets.preflight import rounded

FLAT_DIMENSIONS = 200
"""Beyond it the draws are too few to find the direction along which log p falls the least."""
CONDITIONED, CONDITIONED_NUMBERS = 256, 2**24
"""Draws at which the conditioning of A is computed, and the most numbers that their A may have together."""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `Posterior.diagnose` returns; printed, it is a table that ends in the verdict.

    Quantities that a method does not have are None: what needs log q for particles, R̂ for anything but chains.

    Parameters
    ----------
    draws
        The number of draws that were examined.
    verdict
        Whether to trust the posterior, why, and what to do.
    elbo, elbo_se
        A lower bound on log Z, and its standard error.
    log_evidence, log_evidence_se
        log Z by importance sampling from q, or by islands of particles, and its standard error.
    effective_share
        The effective sample size of the importance weights, as a share of the draws; 1 if q = p.
    k_hat
        The tail index of the importance weights; they are reliable up to 0.7.
    fold
        The share of draws on a fold of the generator.
    condition
        The largest condition number of the generator's head block A.
    density
        "exact" for injective generators; for others "unverified", or "invalid" if a fold was detected; "none" for
        particles and chains.
    rejected
        The share of draws at which log p was not finite.
    missing
        The share of the posterior that the draws miss; None if there was nothing to compare with.
    weighting
        Moments before and after importance weighting.
    stein_mean
        The largest mean score |E[s_i]|, in standard errors of independent draws; a few at most if the means are right.
    stein_spread
        The smallest and the largest −E[(x_i − m_i) s_i], in the coordinates of training; 1 if the spread is right.
    discrepancy, discrepancy_p
        The kernel Stein discrepancy, and the p-value of its test.
    rhat
        Of chains and of islands: the largest R̂.
    ess, divergences
        Of chains: the smallest effective sample size (bulk and tail), and the number of divergences.
    explored
        What independent islands say: their log Z, whether they are healthy, and what they found that the draws miss.
        None where the posterior could not be explored.
    neck
        What the tail of the coordinate along which the posterior narrows adds to its sd. None where the posterior does
        not narrow or could not be explored, or the draws cannot be trusted for another reason.
    image
        Mirror images or permutations of the draws at which log p is as large, and which the draws hardly visit.
    agreement
        Of a refined posterior: where its chains and the importance weights of its generator differ most, and log Z by
        bridge sampling between the two.
    notes
        What training reported.
    """

    draws: int
    verdict: Verdict
    elbo: float | None = None
    elbo_se: float | None = None
    log_evidence: float | None = None
    log_evidence_se: float | None = None
    effective_share: float | None = None
    k_hat: float | None = None
    fold: float | None = None
    condition: float | None = None
    density: str = "none"
    rejected: float = 0.0
    missing: float | None = None
    weighting: Weighting | None = None
    stein_mean: float | None = None
    stein_spread: tuple[float, float] | None = None
    discrepancy: float | None = None
    discrepancy_p: float | None = None
    rhat: float | None = None
    ess: float | None = None
    divergences: int | None = None
    explored: Witness | None = None
    neck: Neck | None = None
    image: Image | None = None
    agreement: Agreement | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [row for row in self._rows() if row is not None]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
        return "\n".join([*lines, *self.warnings, str(self.verdict)])

    def __repr__(self) -> str:
        measures = (
            ("effective share", self.effective_share, ".3f"),
            ("k̂", self.k_hat, ".2f"),
            ("R̂", self.rhat, ".3f"),
        )
        shown = [f"{name} {value:{form}}" for name, value, form in measures if value is not None]
        return f"<Diagnosis: {self.verdict.level}; {', '.join([*shown, f'{self.draws:,} draws'])}>"

    def _repr_html_(self) -> str:
        rows = [row for row in self._rows() if row is not None]
        sentences = "".join(map(paragraph, self.warnings))
        return self.verdict._repr_html_() + sentences + table(rows, left=(0, 1, 2))

    def _rows(self) -> Iterator[tuple[str, str, str] | None]:
        if self.elbo is not None:
            yield "ELBO", f"{self.elbo:.4f} ± {self.elbo_se:.4f}", "a lower bound on log evidence"
        if self.log_evidence is not None:
            yield (
                "log evidence",
                f"{self.log_evidence:.4f} ± {self.log_evidence_se:.4f}",
                "by its islands" if self.k_hat is None else "by importance sampling",
            )
        if self.k_hat is not None:
            yield "importance ESS", f"{self.effective_share:.3f} of {self.draws}", "1 if q = p"
            words = _k_hat_in_words(self.k_hat, self.effective_share or 0.0)
            yield "k̂", f"{self.k_hat:.2f}", words
        if self.weighting is not None:
            moved = f"{self.weighting.mean_shift:.3f} sd, {math.expm1(self.weighting.log_spread_shift):.1%}"
            yield "weights move", moved, "largest shift of a mean, largest change of a spread"
        if self.missing is not None:
            yield (
                "found missing",
                f"{self.missing:.1%}",
                "of the posterior, by other estimates of its evidence",
            )
        yield from self._unvisited_rows()
        if self.fold is not None:
            yield "fold fraction", f"{self.fold:.3f}", f"densities are {self.density}"
            yield (
                "conditioning of A",
                f"{self.condition:.3g}",
                "largest singular value over the smallest",
            )
        if self.stein_spread is not None:
            low, high = self.stein_spread
            yield (
                "Stein mean",
                f"{self.stein_mean:.1f} s.e.",
                "mean score in standard errors; above 4 some mean is wrong",
            )
            yield (
                "Stein spread",
                f"{low:.2f} to {high:.2f}",
                "smallest and largest over coordinates; 1 is correct",
            )
            yield (
                "Stein discrepancy",
                f"{self.discrepancy:.3g} (p = {self.discrepancy_p:.2f})",
                "a small p: these are not independent draws of the posterior",
            )
        if self.rhat is not None:
            yield "R̂", f"{self.rhat:.3f}", "1 if chains or islands agree"
        if self.ess is not None:
            yield (
                "ESS of the chains",
                f"{self.ess:.0f}",
                "smallest over coordinates, bulk and tail",
            )
            yield "divergences", f"{self.divergences}", "should be 0"
        yield from self._agreement_rows()
        if self.rejected > 0:
            yield (
                "rejected draws",
                f"{self.rejected:.3f}",
                "share of draws at which log p was not finite",
            )

    def _unvisited_rows(self) -> Iterator[tuple[str, str, str]]:
        """What is known of places that the draws do not visit."""
        if self.explored is not None:
            yield (
                "explored log evidence",
                f"{self.explored.log_evidence:.4f} ± {self.explored.se:.4f}",
                f"by independent islands of particles, with {self.explored.gradients:,} gradients"
                if self.explored.healthy
                else "by islands that disagree or could not follow everywhere: what they missed does not count",
            )
            yield (
                "explored, unseen",
                f"{self.explored.unseen:.1%}",
                "of the posterior, found by islands and hardly visited by the draws",
            )
            if self.explored.eubo is not None:
                yield "EUBO", f"{self.explored.eubo:.4f}", "an upper bound on log evidence"
        if self.neck is not None and verdict.shown(self.neck):
            yield (
                "neck, unseen",
                f"{self.neck.growth:+.1%} of a sd",
                f"by its tail beyond the draws: {self.neck.errors:.1f} errors, {self.neck.gradients:,} gradients",
            )
        if self.image is not None:
            yield "image, unseen", f"{self.image.share:.1%}", self.image.which

    def _agreement_rows(self) -> Iterator[tuple[str, str, str]]:
        found = self.agreement
        if found is None:
            return
        if found.log_evidence is not None:
            yield (
                "log evidence",
                f"{found.log_evidence:.4f} ± {found.log_evidence_se:.4f}",
                "by bridge sampling between the chains and the generator",
            )
        words = _k_hat_in_words(found.importance.k_hat, found.importance.effective_share)
        yield "k̂ of the generator", f"{found.importance.k_hat:.2f}", words
        yield (
            "chains less weights",
            f"{found.shift:+.3f} sd",
            f"in {found.quantity}, where they differ most: {abs(found.errors):.1f} combined standard errors",
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that say which numbers are invalid or unverified."""
        sentences = list(self.notes)
        if self.density == "invalid":
            sentences.append(
                f"WARNING: {self.fold:.1%} of the draws lie on a fold of the generator, so its ELBO, k̂ and log q are "
                "invalid (a folded map overestimates its entropy). Use an injective generator such as Triangular."
            )
        elif self.density == "unverified":
            sentences.append(
                "The generator is not injective by construction: no fold was detected, but its ELBO, k̂ and log q "
                "are unverified."
            )
        return tuple(sentences)


def _k_hat_in_words(k_hat: float, effective_share: float) -> str:
    if k_hat < GOOD_K_HAT:
        return "importance weights are reliable"
    if k_hat <= RELIABLE_K_HAT:
        return "importance weights are usable"
    if k_hat <= HOPELESS_K_HAT and effective_share >= EVEN_SHARE:
        return "importance weights are even but heavy-tailed: rare events may be wrong"
    return "importance weights are not reliable: do not trust averages over them"


def diagnose_generator(
    generator: Preconditioned,
    density: Whitened,
    initial: InitialEvidence | None,
    exploration: Exploration | None,
    notes: tuple[str, ...],
    draws: int,
    *,
    key: PRNGKeyArray,
) -> Diagnosis:
    """Diagnose a generator, which maps to the target's own coordinates, by new draws and their densities."""
    draw_key, wide_key, stein_key, condition_key = divided(key, 4)
    neck_key = folded(key, 4)
    # in the coordinates of training, where the stopping rule has compiled the same two programs
    drawn = draw_weighted(density, generator.generator, draws, key=draw_key)
    summary, log_weights = importance(drawn.log_ratios)
    own = _in_own_coordinates(density.affine, drawn)
    moments = weighting(own.x, log_weights)
    fold = float(fold_fraction(drawn.sign))
    kind = "exact" if generator.injective else ("unverified" if fold == 0 else "invalid")
    heard = (
        None
        if exploration is None
        else witness.hear(exploration, generator, summary, density.dtype)
    )
    missing = missing_mass(
        summary,
        wide_gaussian_evidence(density, key=wide_key),
        None if initial is None else initial.reference(density),
        witness.evidence_of(exploration),
        dtype=density.dtype,
    )
    image = unvisited_image(density, generator, own, summary) if kind == "exact" else None
    found = [each for each in (heard and heard.unseen, image and image.share) if each is not None]
    missing = max([missing or 0.0, *found]) if found else missing
    u = jnp.asarray(np.asarray(drawn.x)[: stein.POINTS])
    score = _scores(density, u)
    affine = density.affine
    coarse = rounded(affine.location, affine.deviations, None, lambda: density.target.names)
    judged = verdict.of_density(
        verdict.ImportanceSummary(
            summary.draws,
            summary.effective_share,
            summary.k_hat,
            moments.mean_shift,
            moments.log_spread_shift,
            missing,
            summary.rejected,
            kind,
            fall=_fall(density, u, score),
            outside=float(np.isneginf(np.asarray(drawn.log_p)).mean()),
            coarse=coarse[0] if coarse else None,
            explored=exploration is not None and exploration.arrived,
            met_once=0.0 if heard is None else heard.met_once,
            certain_log_spread_shift=moments.certain_log_spread_shift,
            confirmed=heard is not None and heard.healthy,
        )
    )
    judged, neck = _looked_beyond(judged, density, own.x, exploration, log_weights, key=neck_key)
    few = max(1, min(draws, CONDITIONED, CONDITIONED_NUMBERS // generator.latent**2))
    z = noise(generator, few, condition_key)
    return Diagnosis(
        verdict=judged,
        fold=fold,
        condition=float(conditioning(generator.generator, z)),
        density=kind,
        missing=missing,
        weighting=moments,
        explored=heard,
        neck=neck,
        image=image,
        notes=notes,
        **summary._asdict(),
        **_stein_checks(u, score, stein_key),
    )


def diagnose_particles(
    particles: Particles,
    density: Whitened,
    exploration: Exploration | None,
    notes: tuple[str, ...],
    draws: int,
    *,
    key: PRNGKeyArray,
) -> Diagnosis:
    """Diagnose particles by the score at `draws` of them."""
    heard = _heard(particles, density, exploration)
    checks = _checked_by_score(particles, density, draws, key=key)
    judged = verdict.of_particles(
        checks.get("stein_mean"),
        checks.get("stein_spread"),
        checks.get("discrepancy_p"),
        density.dim,
        0.0 if heard is None else heard.unseen,
    )
    return Diagnosis(len(particles.drawn), judged, explored=heard, notes=notes, **checks)


def diagnose_population(
    population: Population,
    density: Whitened,
    exploration: Exploration | None,
    notes: tuple[str, ...],
    draws: int,
    *,
    key: PRNGKeyArray,
) -> Diagnosis:
    """Diagnose islands of particles by their agreement, and by the score at `draws` of them."""
    heard = _heard(population, density, exploration)
    checks = _checked_by_score(population, density, draws, key=key)
    log_z = np.asarray(population.log_evidence, np.float64)
    log_evidence, error = log_mean(log_z)
    rhat = float(np.max(mcmc.summary(population.by_island()).rhat))
    arrived = bool((population.temperature >= 1).all())
    judged = verdict.of_islands(
        arrived,
        error,
        rhat,
        checks.get("stein_mean"),
        checks.get("discrepancy_p"),
        0.0 if heard is None else heard.unseen,
    )
    return Diagnosis(
        len(population.drawn),
        judged,
        log_evidence=log_evidence,
        log_evidence_se=error,
        rhat=rhat,
        explored=heard,
        notes=notes,
        **checks,
    )


def diagnose_chains(
    chains: Chains,
    density: Whitened,
    exploration: Exploration | None,
    notes: tuple[str, ...],
    draws: int,
    *,
    key: PRNGKeyArray,
) -> Diagnosis:
    """Diagnose Markov chains by R̂, ESS and divergences, and by the score at `draws` of their draws.

    R̂ and ESS are the worst of the coordinates of training and of the target's own: a chain that mixes along each axis
    of the one may mix badly along those of the other.
    """
    own = jax.vmap(density.affine)(chains.drawn)
    rhat, ess = mcmc.worst(chains.by_chain(chains.drawn), chains.by_chain(own))
    heard = _heard(chains, density, exploration)
    judged = verdict.of_chains(
        rhat,
        ess,
        chains.divergences,
        0.0 if heard is None else heard.unseen,
        explored=exploration is not None and exploration.arrived,
        met_once=0.0 if heard is None else heard.met_once,
    )
    check_key, neck_key = divided(key, 2)
    judged, neck = _looked_beyond(
        judged,
        density,
        own,
        exploration,
        jnp.zeros(len(own)),
        efficiency=min(ess / len(own), 1.0),
        key=neck_key,
    )
    return Diagnosis(
        len(chains.drawn),
        judged,
        explored=heard,
        neck=neck,
        rhat=rhat,
        ess=ess,
        divergences=chains.divergences,
        notes=notes,
        **_checked_by_score(chains, density, draws, key=check_key),
    )


def with_second_witness(
    diagnosis: Diagnosis,
    chains: Chains,
    generator: Preconditioned,
    density: Whitened,
    draws: int,
    *,
    key: PRNGKeyArray,
) -> Diagnosis:
    """Return the diagnosis of chains after comparing them with weighted draws of the generator they started from."""
    drawn = draw_weighted(density.target, generator, draws, key=key)
    summary, log_weights = importance(drawn.log_ratios)
    if not summary.effective_share > 0:
        unconfirmed = verdict.of_two_witnesses(diagnosis.verdict, summary, None)
        return dataclasses.replace(diagnosis, verdict=unconfirmed)
    x = np.asarray(jax.vmap(density.affine)(chains.drawn), np.float64)
    own = np.asarray(chains.by_chain(x))
    found = compared(
        own,
        np.asarray(drawn.x, np.float64),
        np.asarray(log_weights, np.float64),
        density.target.names,
    )
    some = own[:, :: -(-len(x) // DEFAULT_DRAWS)]
    bridge = _bridge(density, generator, some, np.asarray(drawn.log_ratios, np.float64))
    return dataclasses.replace(
        diagnosis,
        agreement=Agreement(*found, summary, *bridge),
        verdict=verdict.of_two_witnesses(diagnosis.verdict, summary, found),
    )


def _bridge(
    density: Whitened,
    generator: Preconditioned,
    chains: Float[np.ndarray, "c n d"],
    log_ratios: Float[np.ndarray, " m"],
) -> tuple[float, float] | tuple[None, None]:
    """Return log Z by bridge sampling; None if the generator has no inverse or a ratio is not finite."""
    x = jnp.asarray(chains.reshape(-1, density.dim), density.dtype)
    try:
        log_q = log_prob(generator, x)
    except NotAvailableError:
        return None, None
    at_chains = np.asarray(log_densities(density.target, x) - log_q, np.float64)
    usable = np.isfinite(at_chains).all() and not np.isnan(log_ratios).any()
    return bridged(at_chains.reshape(chains.shape[:2]), log_ratios) if usable else (None, None)


def _looked_beyond(
    judged: Verdict,
    density: Whitened,
    x: Float[Array, "n d"],
    exploration: Exploration | None,
    log_weights: Float[Array, " n"],
    efficiency: float = 1.0,
    *,
    key: PRNGKeyArray,
) -> tuple[Verdict, Neck | None]:
    """Look for a neck where the draws end, if the posterior can be explored and nothing else speaks against them."""
    if exploration is None or judged.level == "do not trust":
        return judged, None
    target = density.target
    weights = np.exp(np.asarray(log_weights, np.float64))
    points, score = np.asarray(x, np.float64), np.asarray(_scores(target, x), np.float64)
    neck = necks.beyond(target, points, score, weights / weights.sum(), efficiency, key=key)
    name = "" if neck is None else target.names[neck.coordinate]
    return verdict.beside_neck(judged, neck, name), neck


def _heard(
    particles: Particles, density: Whitened, exploration: Exploration | None
) -> Witness | None:
    """What the islands say about a fixed set of draws."""
    if exploration is None:
        return None
    draws = jax.vmap(density.affine)(particles.drawn)
    return witness.hear_points(exploration, np.asarray(draws, np.float64))


def _checked_by_score(
    particles: Particles, density: Whitened, draws: int, *, key: PRNGKeyArray
) -> dict[str, Any]:
    """Stein's checks at a random subset of the particles."""
    choice_key, stein_key = jax.random.split(key)
    n = min(draws, stein.POINTS)
    u = particles.drawn[jax.random.permutation(choice_key, len(particles.drawn))[:n]]
    return _stein_checks(u, _scores(density, u), stein_key)


def _stein_checks(
    u: Float[Array, "n d"], score: Float[Array, "n d"], key: PRNGKeyArray
) -> dict[str, Any]:
    """The fields of a diagnosis that need no density, from the scores at the draws; none if too few are finite."""
    finite = np.asarray(np.isfinite(np.asarray(score)).all(1))
    if finite.sum() < 3:
        return {}
    u, score = _rows(u, finite), _rows(score, finite)
    mean, spread = map(np.asarray, stein.identities(u, score))
    discrepancy = stein.discrepancy(u, score, key=key)
    return {
        "stein_mean": float(np.abs(mean).max()),
        "stein_spread": (float(spread.min()), float(spread.max())),
        "discrepancy": float(discrepancy.value),
        "discrepancy_p": float(discrepancy.p_value),
    }


def _fall(density: Whitened, u: Float[Array, "n d"], score: Float[Array, "n d"]) -> float | None:
    """Return by how many nats log p falls when draws move outwards, along the direction in which it falls the least.

    It is the median fall, on the side where that is smaller: 22 for a Gaussian, 3.9 for a Cauchy distribution. What
    falls by less than log `FAR` has no integral along that line.
    """
    finite = np.asarray(np.isfinite(np.asarray(score)).all(1))
    few = finite.sum() < 2 * u.shape[1]
    if few or u.shape[1] > FLAT_DIMENSIONS or density.stream is not None:
        return None
    u, score = _rows(u, finite), _rows(score, finite)
    along, line = map(np.asarray, stein.flattest(u, score))
    moved = jnp.asarray(np.asarray(u) + (verdict.FAR - 1) * along[:, None] * line)
    near, far = (np.asarray(log_densities(density, points)) for points in (u, moved))
    with np.errstate(invalid="ignore"):  # −∞ at both
        fall = near - far
    fall = np.where(np.isnan(fall), np.inf, fall)
    outwards = along > 0
    return float(min(np.median(fall[side]) for side in (outwards, ~outwards) if side.any()))


def _rows(points: Float[Array, "n d"], chosen: Bool[np.ndarray, " n"]) -> Float[Array, "m d"]:
    """The chosen rows, taken on the host: on the device each operation of a selection is a program of its own."""
    return points if chosen.all() else jnp.asarray(np.asarray(points)[chosen])


@brief
def _in_own_coordinates(affine: Affine, drawn: WeightedDraws) -> WeightedDraws:
    """Return draws, which are in the coordinates of training, in the target's."""
    shift = affine.log_det()
    x = jax.vmap(affine)(drawn.x)
    return WeightedDraws(x, drawn.log_p - shift, drawn.log_q - shift, drawn.sign)


@brief
def _scores(density: Density, u: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return scores(density, u)
