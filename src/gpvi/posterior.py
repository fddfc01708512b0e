"""What `fit` returns: draws, densities, a diagnosis, and a directory that holds it all."""

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from gpvi import convergence, export, specs, stein, storage, verdict
from gpvi.affine import Affine
from gpvi.carriers import Chains, Particles, Sampler, standard_normal
from gpvi.coverage import FromStart, missing, outside_evidence
from gpvi.diagnostics import (
    Diagnosis,
    conditioning,
    fold_fraction,
    importance,
    smoothed_log_weights,
    weighting,
)
from gpvi.errors import InputError, NotAvailableError, StorageError
from gpvi.generators import AbstractGenerator, Preconditioned, Triangular
from gpvi.generators.triangular import HEAD
from gpvi.methods import Method
from gpvi.methods.base import State, log_standard_normal
from gpvi.methods.transport import Amortized
from gpvi.summary import Summary, summarise
from gpvi.target import Density, Target, Whitened, scores

Count = int | np.integer
Parts = tuple[AbstractGenerator | Particles, Affine, PyTree]
"""The model, its coordinates, and what a solver, critic or sampler had learned."""
PREFIXES = ("model", "affine", "auxiliary")
MOST_LAYERS = 1_000
"""Of a generator that is loaded."""
DRAWS, ENTRIES = 4_000, 2**26
"""How many draws a diagnosis takes where nobody says, and how many numbers they may be."""
LEAST_DRAWS = 100
LISTED = 10_000
"""Names of more coordinates are saved among the arrays: a document is to be read by people."""
FLAT_DIMENSIONS = 200
"""Beyond it the draws are too few to find the direction along which log p falls the least."""


@dataclasses.dataclass(frozen=True)
class Training:
    """How the training went."""

    steps: int
    planned: int
    seconds: float
    history: dict[str, np.ndarray]
    """Each reported term, one value for each step."""
    notes: tuple[str, ...] = ()
    start: str = ""
    """Where it began."""
    chosen: str = ""
    """What the library chose, and why training stopped."""
    evidence: FromStart | None = None
    """log Z as the start estimated it."""


class Posterior:
    """A trained posterior; `gpvi.fit` and `gpvi.load` make it.

    Attributes
    ----------
    method, dim, names: what was trained, on how many coordinates, called what.
    affine: the coordinates x = location + L u in which the model was trained.
    training: how it went.
    target: the target, where it is at hand; a loaded posterior has none (see `with_target`).
    auxiliary: what a solver, critic or sampler had learned, for training to go on from.
    """

    def __init__(
        self,
        method: Method,
        model: AbstractGenerator | Particles,
        affine: Affine,
        names: tuple[str, ...] | Callable[[], tuple[str, ...]],
        training: Training,
        target: Target | None = None,
        auxiliary: PyTree = None,
    ):
        self.method = method
        self.model = model
        self.affine = affine
        self._names = names
        self.training = training
        self.target = target
        self.auxiliary = auxiliary
        self.dim = affine.location.shape[0]
        self.dtype = np.dtype(affine.location.dtype)

    @classmethod
    def from_training(
        cls, method: Method, target: Target, affine: Affine, state: State, training: Training
    ) -> "Posterior":
        """The posterior that a finished state holds."""
        model = state.learner.model
        model = model.generator if isinstance(model, Sampler) else model
        return cls(method, model, affine, lambda: target.names, training, target, state.auxiliary)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds, as copies for other processes are made: all but what may hold functions.

        These are the target, and what a solver or critic had learned, which a saved posterior keeps.
        """
        return self.__dict__ | {"_names": self.names, "target": None, "auxiliary": None}

    @property
    def names(self) -> tuple[str, ...]:
        """One for each coordinate; of a target, made when they are asked for."""
        return self._names() if callable(self._names) else self._names

    def __repr__(self) -> str:
        done, planned = self.training.steps, self.training.planned
        return f"<Posterior of {self.method} in {self.dim} dimensions, {done} of {planned} steps>"

    @property
    def generator(self) -> Preconditioned:
        """f_θ from noise to the target's own coordinates."""
        if isinstance(self.model, Particles):
            raise NotAvailableError(
                f"{self._name} holds a fixed set of {len(self.model.drawn)} draws and no generator. "
                "Use GPVI, or an amortised method such as AmortizedSVGD, for new draws."
            )
        return Preconditioned(self.model, self.affine)

    @property
    def particles(self) -> Float[Array, "n d"]:
        """The particles of a particle method, in the target's own coordinates."""
        if not isinstance(self.model, Particles):
            raise NotAvailableError(
                f"{self._name} holds a generator, not particles: use sample(n, key=…)."
            )
        with self._precision():
            return jax.vmap(self.affine)(self.model.drawn)

    def carrier(self) -> AbstractGenerator | Sampler | Particles:
        """The model as a method's `step` holds it."""
        return Sampler(self.model) if isinstance(self.method, Amortized) else self.model  # pyright: ignore[reportArgumentType]

    def with_target(self, target: Target) -> "Posterior":
        """The same posterior with the target it approximates, so that it can be diagnosed."""
        if target.dim != self.dim:
            raise InputError(f"the target has dim={target.dim}, the posterior {self.dim}.")
        if target.dtype != self.dtype:
            raise InputError(
                f"the target is in {target.dtype}, the posterior {self.dtype}: "
                f"pass Target(…, dtype={self.dtype.name!r})."
            )
        named = target.naming is not None and self.dim <= LISTED
        if named and target.names != self.names:
            raise InputError(
                f"the target names its coordinates {_first(target.names)}, the posterior {_first(self.names)}: give "
                "the target that was fitted, with its coordinates in the same order."
            )
        return Posterior(
            self.method, self.model, self.affine, self._names, self.training, target, self.auxiliary
        )

    def sample(self, n: Count, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """n draws: new ones from a generator; a random subset from a set of particles."""
        n = self._count(n, key)
        with self._precision():
            if not isinstance(self.model, Particles):
                return _draw(self.generator, n, key)
            particles = self.particles
            if n > len(particles):
                raise NotAvailableError(
                    f"{self._name} holds {len(particles)} draws, so {n} draws are not available. Ask for at most "
                    f"{len(particles)}, train with more, or use GPVI or AmortizedSVGD, which draw as many as you like."
                )
            return particles[jax.random.permutation(key, len(particles))[:n]]

    def sample_and_log_prob(
        self, n: Count, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """n new draws and log q of each (Eq. 1); the draws are those of `sample` with the same key."""
        n = self._count(n, key)
        self._require_density("sample_and_log_prob")
        with self._precision():
            x, log_q, _ = _draw_with_density(self.generator, n, key)
            return x, log_q

    def log_prob(self, x: ArrayLike) -> Float[Array, "*n"]:
        """log q at given points, where the generator inverts exactly."""
        self._require_density("log_prob")
        with self._precision():
            x = jnp.asarray(x, self.dtype)
            if x.ndim not in (1, 2) or x.shape[-1] != self.dim:
                raise InputError(
                    f"x has shape {x.shape}; pass (n, {self.dim}) points, or one of ({self.dim},)."
                )
            values = _log_prob(self.generator, jnp.atleast_2d(x))
            return values if x.ndim == 2 else values[0]

    def diagnose(self, *, key: PRNGKeyArray, draws: Count | None = None) -> Diagnosis:
        """Whether to believe it, in numbers and one sentence; prints as a table.

        It takes 4,000 draws by default, fewer of more than 16,000 coordinates, and never less than 100.

        With a density: ELBO, log evidence, importance ESS, k̂, moments before and after weighting, what is missed, fold
        fraction and conditioning. For chains: R̂, ESS, divergences. For all: Stein's identities and discrepancy.
        """
        draws = self._count(self._affordable() if draws is None else draws, key)
        if draws < LEAST_DRAWS:
            raise InputError(
                f"draws is {draws}; the tail of their weights says nothing below {LEAST_DRAWS}. Leave it out, or ask "
                "for more."
            )
        target = self._require_target("diagnose")
        density = Whitened(target, self.affine)
        with self._precision():
            if isinstance(self.model, Particles):
                return self._diagnose_draws(density, draws, key)
            return self._diagnose_density(density, draws, key)

    def _diagnose_density(self, density: Whitened, draws: int, key: PRNGKeyArray) -> Diagnosis:
        draw_key, wide_key, stein_key, few_key = jax.random.split(key, 4)
        x, log_q, sign = _draw_with_density(self.generator, draws, draw_key)
        found, log_weights = importance(_log_densities(density.target, x) - log_q)
        moments = weighting(x, log_weights)
        fold = float(fold_fraction(sign))
        few = standard_normal(self.generator, min(draws, 256), key=few_key)
        kind = "exact" if self.generator.injective else ("unverified" if fold == 0 else "invalid")
        known = self.training.evidence
        missed = missing(
            found,
            outside_evidence(density, key=wide_key),
            None if known is None else known.evidence(density),
            dtype=self.dtype,
        )
        some = jax.vmap(self.affine.inverse)(x[: stein.POINTS])
        at = _scores(density, some)
        said = verdict.of_density(
            verdict.Evidence(
                found.draws,
                found.effective_share,
                found.k_hat,
                moments.mean_shift,
                moments.log_spread_shift,
                missed,
                found.rejected,
                kind,
                _fall(density, some, at),
            )
        )
        return Diagnosis(
            verdict=said,
            fold=fold,
            condition=float(_conditioning(self.generator.generator, few)),
            density=kind,
            missing=missed,
            weighting=moments,
            notes=self.training.notes,
            **found._asdict(),
            **_stein(some, at, stein_key),
        )

    def _diagnose_draws(self, density: Whitened, draws: int, key: PRNGKeyArray) -> Diagnosis:
        assert isinstance(self.model, Particles)
        kept = self.model.drawn
        choice_key, stein_key = jax.random.split(key)
        some = jax.random.permutation(choice_key, len(kept))[: min(draws, stein.POINTS)]
        checks = _stein(kept[some], _scores(density, kept[some]), stein_key)
        if isinstance(self.model, Chains):
            mixed = convergence.summary(self.model.by_chain(kept))
            rhat = float(np.max(mixed.rhat))
            ess = float(np.min([mixed.ess_bulk, mixed.ess_tail]))
            divergences = self.model.divergences
            return Diagnosis(
                len(kept),
                verdict.of_chains(rhat, ess, divergences),
                rhat=rhat,
                ess=ess,
                divergences=divergences,
                notes=self.training.notes,
                **checks,
            )
        said = verdict.of_particles(
            checks.get("stein_mean"),
            checks.get("stein_spread"),
            checks.get("discrepancy_p"),
            self.dim,
        )
        return Diagnosis(len(kept), said, notes=self.training.notes, **checks)

    def summary(self, *, key: PRNGKeyArray, draws: Count | None = None) -> Summary:
        """Mean, spread and quantiles of every quantity that the model names, in its support; prints as a table.

        They are those of the draws as they are, 4,000 by default (`resample` weights them); of particles and chains, of
        all there are, and chains have R̂ and ESS.
        """
        target = self._require_target("summary")
        n = self._count(self._affordable() if draws is None else draws, key)
        held = isinstance(self.model, Particles)
        with self._precision():
            x = self.particles if held else _draw(self.generator, n, key)
            named = export.flat(export.named(target, x))
        return summarise(named, self.model.by_chain if isinstance(self.model, Chains) else None)

    def resample(
        self, n: Count, *, key: PRNGKeyArray, proposals: Count | None = None
    ) -> Float[Array, "n d"]:
        """n draws by Pareto-smoothed importance resampling of `proposals` (10 n by default) new ones."""
        n = self._count(n, key)
        proposals = 10 * n if proposals is None else self._count(proposals, key)
        target = self._require_target("resample")
        self._require_density("resample")
        draw_key, choice_key = jax.random.split(key)
        with self._precision():
            x, log_q, _ = _draw_with_density(self.generator, proposals, draw_key)
            log_weights, _ = smoothed_log_weights(_log_densities(target, x) - log_q)
            return x[jax.random.categorical(choice_key, log_weights, shape=(n,))]

    def draws(self, n: Count, *, key: PRNGKeyArray) -> PyTree:
        """n draws by name and in their supports, deterministic sites included, as the target's model knows them."""
        target = self._require_target("draws")
        x = self.sample(n, key=key)
        with self._precision():
            return export.named(target, x)

    def to_arviz(
        self,
        *,
        key: PRNGKeyArray,
        draws: Count = 4_000,
        predictive: bool = True,
        log_likelihood: bool = True,
    ) -> Any:
        """The posterior for ArviZ: InferenceData, or a DataTree for ArviZ ≥ 1.

        Groups: `posterior` (named, constrained), `sample_stats` (`lp` = log p; with a density `lp_q` = log q and the
        Pareto-smoothed `log_weight`, normalised), and for NumPyro models `posterior_predictive`, `log_likelihood` and
        `observed_data`. Particles and chains give at most `draws` of what they hold; chains stay apart.
        """
        draws = self._count(draws, key)
        target = self._require_target("to_arviz")
        export.check(target, draws, predictive=predictive, log_likelihood=log_likelihood)
        draw_key, predict_key = jax.random.split(key)
        chains, log_q, divergent = getattr(self.model, "chains", 1), None, None
        with self._precision():
            if not isinstance(self.model, Particles):
                x, log_q, _ = _draw_with_density(self.generator, draws, draw_key)
            else:
                rows = _thinned(len(self.particles), chains, draws)
                x = self.particles[rows]
                divergent = getattr(self.model, "divergent", None)
                divergent = None if divergent is None else divergent[rows]
            return export.to_arviz(
                target,
                x,
                log_p=_log_densities(target, x),
                log_q=log_q,
                divergent=divergent,
                chains=chains,
                key=predict_key,
                predictive=predictive,
                log_likelihood=log_likelihood,
                attributes={"inference_library": "gpvi", "method": self._name},
            )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a directory of safetensors and JSON that `gpvi.load` reads without the target."""
        parts = (self.model, self.affine, self.auxiliary)
        arrays = {name: np.asarray(leaf) for name, leaf in _named_arrays(parts)}
        history = {f"history/{name}": values for name, values in self.training.history.items()}
        names = list(self.names)
        if len(names) > LISTED:
            arrays["names"] = np.frombuffer(json.dumps(names).encode(), np.uint8)
        document = {
            "method": specs.to_json(self.method),
            "dim": self.dim,
            "dtype": self.dtype.name,
            "names": names if len(names) <= LISTED else None,
            "affine": "diagonal" if self.affine.scale.ndim == 1 else "dense",
            "training": {
                "steps": self.training.steps,
                "planned": self.training.planned,
                "seconds": self.training.seconds,
                "notes": list(self.training.notes),
                "start": self.training.start,
                "chosen": self.training.chosen,
                "evidence": self.training.evidence,
                "history": list(self.training.history),
            },
        }
        storage.write(directory, document, arrays | history)

    def _affordable(self) -> int:
        """How many draws to look at where nobody says."""
        return max(LEAST_DRAWS, min(DRAWS, ENTRIES // self.dim))

    def _count(self, n: Any, key: Any) -> int:
        """The number of draws as a static value of the compiled programs, which one of NumPy is not."""
        specs.require_key(key)
        if not specs.is_whole(n) or n < 1:
            raise InputError(f"the number of draws is {n!r}; it must be a whole number ≥ 1.")
        return int(n)

    def _require_density(self, what: str) -> None:
        if isinstance(self.model, Particles):
            raise NotAvailableError(
                f"{what} needs the density of the draws, and {self._name} has none: its particles are a set of points. "
                "GPVI, the amortised methods and flows have one."
            )

    def _require_target(self, what: str) -> Target:
        if self.target is None:
            raise NotAvailableError(
                f"{what} needs the target, and a loaded posterior does not hold it: "
                "posterior.with_target(target) first."
            )
        return self.target

    @property
    def _name(self) -> str:
        return type(self.method).__name__

    def _precision(self):
        return jax.enable_x64(self.dtype == np.dtype("float64"))


def load(directory: str | os.PathLike[str]) -> Posterior:
    """Read a posterior that `save` wrote; nothing in the files is executed, and no target is needed."""
    document, arrays = storage.read(directory)
    try:
        return _from_document(document, arrays)
    except StorageError:
        raise
    except Exception as error:  # whatever a foreign document makes of the constructors is its fault
        raise StorageError(
            f"{directory} does not hold a posterior that this version of gpvi can read: {repr(error)[:500]}. "
            "It may come from another version, or have been edited."
        ) from error


def _from_document(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Posterior:
    _expect(_layers(document["method"]) <= MOST_LAYERS, "it has too many layers")
    method, training = specs.from_json(document["method"]), document["training"]
    dim, dtype = document["dim"], document["dtype"]
    _expect(isinstance(method, Method), f"method is {method!r}")
    _expect(type(dim) is int and dim >= 1, f"dim is {dim!r}")
    _expect(dtype in ("float32", "float64"), f"dtype is {dtype!r}")
    listed = document["names"]
    names = tuple(json.loads(arrays["names"].tobytes()) if listed is None else listed)
    _expect(len(names) == dim and all(isinstance(name, str) for name in names), "names do not fit")
    _expect(document["affine"] in ("diagonal", "dense"), f"affine is {document['affine']!r}")
    history = {name: arrays[f"history/{name}"] for name in training["history"]}
    record = Training(
        training["steps"],
        training["planned"],
        training["seconds"],
        history,
        tuple(training["notes"]),
        training["start"],
        training.get("chosen", ""),
        FromStart.read(training.get("evidence")),
    )
    _expect(type(record.steps) is int and type(record.planned) is int, "training.steps do not fit")
    _expect(isinstance(record.seconds, int | float), "training.seconds does not fit")
    _expect(
        all(isinstance(text, str) for text in (*record.notes, record.start, record.chosen)),
        "notes do not fit",
    )
    _expect(
        all(values.shape == (record.steps,) for values in history.values()), "history does not fit"
    )
    with jax.enable_x64(dtype == "float64"):
        method = _as_saved(method, dim, arrays)
        parts = _filled(method, dim, np.dtype(dtype), document["affine"], arrays)
    model, affine, auxiliary = parts
    return Posterior(method, model, affine, names, record, auxiliary=auxiliary)


def _as_saved(method: Method, dim: int, arrays: dict[str, np.ndarray]) -> Method:
    """The method, but with the head that its file is for: those of no stated size once ended at 64 coordinates."""
    generator = getattr(method, "generator", None)
    if not isinstance(generator, Triangular) or generator.latent is not None:
        return method
    has_a_tail = any(name.startswith("model.network.") for name in arrays)
    if not has_a_tail or dim <= HEAD or generator.head_size(dim) < dim:
        return method
    former = dataclasses.replace(generator, latent=HEAD)
    return dataclasses.replace(cast(Any, method), generator=former)


def _layers(specification: Any) -> int | float:
    """The layers, at most, that a specification names: the shape of each takes time to find."""
    if isinstance(specification, list):
        return len(specification) + sum(map(_layers, specification))
    if not isinstance(specification, dict):
        return 0
    named = (specification.get(name) for name in ("layers", "depth", "hidden_layers"))
    own = sum(value for value in named if isinstance(value, int | float))
    return own + sum(map(_layers, specification.values()))


def _first(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StorageError(f"the saved document is not of a posterior: {otherwise[:200]}.")


def _filled(
    method: Method, dim: int, dtype: np.dtype, affine_kind: str, arrays: dict[str, np.ndarray]
) -> Parts:
    """The parts of a posterior of this specification with the stored arrays in their leaves, whose shapes must fit.

    Nothing of them is computed: only their shapes are found. What a solver or critic had learned is None in files that
    do not hold it.
    """
    import optax

    shape = Target(
        jnp.sum, dim, dtype=dtype
    )  # building a model needs no more of a target than this

    def build() -> Parts:
        learner, auxiliary = method.init(shape, optax.sgd(0.0), key=jax.random.key(0))
        model = learner.model
        model = model.generator if isinstance(model, Sampler) else model
        scale = jnp.zeros((dim,) if affine_kind == "diagonal" else (dim, dim), dtype)
        return model, Affine(jnp.zeros(dim, dtype), scale), auxiliary

    form = eqx.filter_eval_shape(build)
    if not any(name.startswith("auxiliary") for name in arrays):
        form = (*form[:2], None)
    for name, leaf in _named_arrays(form):
        stored = arrays.get(name)
        if stored is None or stored.shape != leaf.shape or stored.dtype != leaf.dtype:
            found = "none" if stored is None else f"{stored.dtype}{list(stored.shape)}"
            raise StorageError(
                f"the saved array {name} does not fit {str(method)[:500]}: expected {leaf.dtype}{list(leaf.shape)}, "
                f"found {found}."
            )
    filled = {name: jnp.asarray(arrays[name]) for name, _ in _named_arrays(form)}
    return tuple(  # pyright: ignore[reportReturnType]
        jax.tree_util.tree_map_with_path(
            lambda path, leaf, prefix=prefix: filled.get(prefix + jax.tree_util.keystr(path), leaf),
            tree,
        )
        for prefix, tree in zip(PREFIXES, form, strict=True)
    )


def _named_arrays(parts: Parts) -> list[tuple[str, Any]]:
    """Every array leaf with a name made of its path."""
    return [
        (prefix + jax.tree_util.keystr(path), leaf)
        for prefix, tree in zip(PREFIXES, parts, strict=True)
        for path, leaf in jax.tree.leaves_with_path(tree)
        if eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    ]


def _thinned(rows: int, chains: int, most: int) -> np.ndarray:
    """At most `most` of the rows, whole draws of all chains, evenly apart and in order."""
    draws = rows // chains
    kept = np.linspace(0, draws - 1, min(draws, max(1, most // chains))).round().astype(int)
    return (kept[:, None] * chains + np.arange(chains)).ravel()


_conditioning = eqx.filter_jit(conditioning)


@eqx.filter_jit
def _draw(generator: AbstractGenerator, n: int, key: PRNGKeyArray) -> Float[Array, "n d"]:
    return jax.vmap(generator)(standard_normal(generator, n, key=key))


@eqx.filter_jit
def _draw_with_density(
    generator: AbstractGenerator, n: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n d"], Float[Array, " n"], Float[Array, " n"]]:
    z = standard_normal(generator, n, key=key)
    x, sign, log_det = jax.vmap(generator.transform_and_log_det)(z)
    return x, jax.vmap(log_standard_normal)(z) - log_det, sign


@eqx.filter_jit
def _log_prob(generator: AbstractGenerator, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    z = jax.vmap(generator.inverse)(x)
    return jax.vmap(log_standard_normal)(z) - jax.vmap(generator.log_det)(z)[1]


@eqx.filter_jit
def _log_densities(target: Density, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    return target.log_densities(x)


def _stein(u: Float[Array, "n d"], at: Float[Array, "n d"], key: PRNGKeyArray) -> dict[str, Any]:
    """The checks that need no density, in the coordinates of training, by the scores at the draws."""
    finite = jnp.isfinite(at).all(1)
    if finite.sum() < 3:
        return {}
    u, at = u[finite], at[finite]
    mean, spread = stein.identities(u, at)
    found = stein.discrepancy(u, at, key=key)
    return {
        "stein_mean": float(jnp.abs(mean).max()),
        "stein_spread": (float(spread.min()), float(spread.max())),
        "discrepancy": float(found.value),
        "discrepancy_p": float(found.p_value),
    }


def _fall(density: Whitened, u: Float[Array, "n d"], at: Float[Array, "n d"]) -> float | None:
    """By how many nats log p is lower at draws moved outwards along its flattest direction.

    The median, on the side where it is less: 22 for a Gaussian, 3.9 for a Cauchy distribution. What falls by less than
    log `FAR` has no integral along that line.
    """
    finite = np.asarray(jnp.isfinite(at).all(1))
    few = finite.sum() < 2 * u.shape[1]
    if few or u.shape[1] > FLAT_DIMENSIONS or density.stream is not None:
        return None
    u, at = u[finite], at[finite]
    along, line = stein.flattest(u, at)
    moved = u + (verdict.FAR - 1) * along[:, None] * line
    fall = np.asarray(_log_densities(density, u) - _log_densities(density, moved))
    fall = np.where(np.isnan(fall), np.inf, fall)
    out = np.asarray(along) > 0
    return float(min(np.median(fall[side]) for side in (out, ~out) if side.any()))


@eqx.filter_jit
def _scores(density: Whitened, u: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return scores(density, u)
