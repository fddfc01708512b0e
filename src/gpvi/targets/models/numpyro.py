r"""NumPyro models of a flat vector.

A site with support S is written as θ = T(u) with NumPyro's bijection T: R^m → S, and x is the concatenation of all u.
The log-density of x is log p(θ, y) + Σ log|det T′(u)|. Discrete sites are summed out (`_enumeration.py`).

A plate of N with `subsample_size=B` gives the mini-batch form. Sites inside the plate make up the sum over data, which
a batch scales by N/B; sites outside it make up the prior; and the data are the indices 0…N−1. A latent site inside the
plate keeps all its N values in x, and a batch uses those of its own indices. If several plates are subsampled, the
data are the indices of the one with the most batches. A batch of it determines those of the others, by a hash that
looks random; so it must have many (`FEWEST_BATCHES`), for the estimate of log p to be unbiased.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi._inputs import precision
from gpvi.errors import GPVIError, InputError, NotAvailableError, brief
from gpvi.targets.coordinate_names import entry_names
from gpvi.targets.minibatch import permuted
from gpvi.targets.models import _enumeration as enumeration
from gpvi.targets.models import _numpyro_sites as sites
from gpvi.targets.models.model import ATTEMPTS, described, finite_point, first_line, split

FEWEST_BATCHES = 10**6
"""If several plates are subsampled, one must have this many different batches."""
Indices = Mapping[str, Int[Array | np.ndarray, " b"]]
"""The indices of a batch, by subsampled plate; all those of a plate that is left out."""


class NumPyroModel:
    """A NumPyro model with its arguments, which are constants of the compiled program.

    Attributes
    ----------
    dim, names, initial
        The dimension of x, the names of its coordinates, and a point where the log-density is finite.
    plates
        The plates that are subsampled.
    states
        The discrete latent sites, which are summed out.
    held
        The values of `numpyro.param` sites: the initial ones, as in `numpyro.infer.MCMC`.
    observed
        The values of the observed sites.
    draws_keys
        Whether the model calls `numpyro.prng_key`, for numbers that are then the same at every evaluation.
    dims
        The names of the axes of each site, taken from its plates.
    """

    def __init__(self, model: Any, args: tuple, kwargs: Mapping[str, Any], dtype: np.dtype):
        _require_numpyro()
        self._model, self._dtype = enumeration.plain(model), dtype
        self._args, self._kwargs = _copied((args, dict(kwargs)), dtype)
        self._latents: Sequence[sites.Latent] = ()
        self._depth = 0
        self.plates: tuple[sites.Plate, ...] = ()
        self.states: tuple[str, ...] = ()
        self.held: dict[str, PyTree] = {}
        self.dims: dict[str, tuple[str, ...]] = {}
        self.coords: dict[str, Sequence[Any]] = {}
        self.constants: dict[str, np.ndarray] = {}
        with precision(dtype):
            self._inspect(self._read_structure, self._model)
            self.held = self._initial_parameters()
            drawn: set[str] = set()
            self._inspect(self._read_sites, sites.watching_keys(self._on({}), drawn))
            self.draws_keys = bool(drawn)
            self.dim = sum(math.prod(latent.shape) for latent in self._latents)
            if self.dim == 0:
                raise InputError(
                    f"the model {_name(model)} has no latent sites, so there is nothing to infer. "
                    "Give its unknowns priors with numpyro.sample, and pass data as obs=."
                )
            self.names = tuple(
                name for site in self._latents for name in entry_names(site.name, site.shape)
            )
            self._check_batches()
            self._check_states()
            medians, observed = self._medians()
            self.observed = {name: np.asarray(value) for name, value in observed.items()}
            self.initial = self._find_start(medians)

    def target_arguments(self) -> dict[str, Any]:
        """The arguments of `Target` for this model: a log-density, or the mini-batch form if a plate is subsampled."""
        start = {"dim": self.dim, "initial": self.initial, "names": self.names}
        if not self.plates:
            return {"log_density": self.log_joint, **start}
        functions = {"log_likelihood": self.log_inside, "log_prior": self.log_outside}
        first = self.plates[0]
        return functions | {"data": np.arange(first.size), "batch_size": first.subsample} | start

    def log_joint(self, x: Float[Array, " d"]) -> Scalar:
        """log p(θ(x), y) + log|det θ′(x)| of all data."""
        if self.states:
            model = self._seeded(jax.random.key(0))
            u = self.unravel(x)
            return enumeration.summed_log_density(model, self._args, self._kwargs, u, self._depth)
        log_probs, _ = self._log_probs(x, {})
        return _total(log_probs.values())

    def log_inside(self, x: Float[Array, " d"], indices: Int[Array, " b"]) -> Scalar:
        """The unscaled sum over the sites inside subsampled plates, for these indices of the first of them."""
        log_probs, trace = self._log_probs(x, self._batch(indices))
        inside = _total(value for name, value in log_probs.items() if self._is_inside(trace[name]))
        return inside * (len(indices) / self.plates[0].size)

    def log_outside(self, x: Float[Array, " d"]) -> Scalar:
        """The sum over the sites outside the subsampled plates."""
        log_probs, trace = self._log_probs(x, {})
        return _total(
            value for name, value in log_probs.items() if not self._is_inside(trace[name])
        )

    def finite_in_double(self, points: Float[np.ndarray, "n d"]) -> np.ndarray | None:
        """Whether the log-density and its gradient are finite in float64, for each point.

        None if they cannot be computed in float64 because the model contains arrays of another precision.
        """
        double = np.dtype("float64")
        try:
            with precision(double):
                model = NumPyroModel(self._model, self._args, self._kwargs, double)
                evaluate = jax.jit(partial(jax.lax.map, jax.value_and_grad(model.log_joint)))
                values, slopes = map(np.asarray, evaluate(jnp.asarray(points, double)))
        except (TypeError, ValueError):
            return None
        return np.isfinite(values) & np.isfinite(slopes).all(1)

    def constrain(
        self, x: Float[Array, " d"], *, key: PRNGKeyArray | None = None
    ) -> dict[str, Array]:
        """The values of the latent sites, in their supports, and of the deterministic sites.

        `key` draws the discrete sites, given x and the data; there are none in other models.
        """
        model = self._substituted(x, {})
        trace = self._trace(model)
        if self.states:
            from numpyro.handlers import substitute

            key = jax.random.key(0) if key is None else key
            values = {latent.name: trace[latent.name]["value"] for latent in self._latents}
            states = enumeration.drawn_states(
                self._seeded(key),
                self._args,
                self._kwargs,
                values,
                self.states,
                self._depth,
                key=key,
            )
            shaped = {
                name: jnp.reshape(state, jnp.shape(trace[name]["value"]))
                for name, state in states.items()
            }
            trace = self._trace(substitute(model, data=shaped))
        return {
            name: jnp.asarray(site["value"])
            for name, site in trace.items()
            if sites.is_deterministic(site) or sites.is_latent(site) or sites.is_state(site)
        }

    def predict(self, x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]:
        """One draw of the observed sites given x; discrete sites are drawn anew, with the data."""
        from numpyro.handlers import uncondition

        trace = self._trace(uncondition(self._substituted(x, {}, key=key)))
        return {
            name: trace[name]["value"] for name in self.observed if not trace[name]["is_observed"]
        }

    def log_likelihood(self, x: Float[Array, " d"]) -> dict[str, Array]:
        """log p(y_i | x) of each observation, by site; nothing if discrete sites tie the observations together."""
        if self.states:
            return {}
        trace = self._trace(self._substituted(x, {}))
        return {
            name: trace[name]["fn"].log_prob(trace[name]["value"])
            for name in self.observed
            if trace[name]["is_observed"]
        }

    def predictor(self, args: tuple, kwargs: Mapping[str, Any]) -> Callable[..., dict[str, Array]]:
        """(x, key=…) → one draw of what the model does not share with this one, when it is called with these arguments.

        Latent sites of another shape, such as effects of new groups, are drawn from their priors.
        """
        from numpyro.handlers import substitute

        new_args, new_kwargs = _copied((args, dict(kwargs)), self._dtype)
        there: dict[str, Any] = {}

        def read(trace: dict[str, dict[str, Any]]) -> None:
            unknown = {name: site for name, site in trace.items() if sites.is_latent(site)}
            there.update({name: np.shape(site["value"]) for name, site in unknown.items()})

        self._inspect(read, self._on({}), new_args, new_kwargs)
        here = jax.eval_shape(self.constrain, jax.ShapeDtypeStruct((self.dim,), self._dtype))
        kept = {
            latent.name
            for latent in self._latents
            if there.get(latent.name) == here[latent.name].shape
        }

        def predicted(x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]:
            own = self._trace(self._substituted(x, {}))
            values = {name: own[name]["value"] for name in kept}
            model = substitute(self._seeded(key), data=values)
            trace = self._trace(model, new_args, new_kwargs)
            return {
                name: jnp.asarray(site["value"])
                for name, site in trace.items()
                if sites.is_deterministic(site)
                or (site["type"] == "sample" and not site["is_observed"] and name not in kept)
            }

        return predicted

    def unravel(self, x: Float[Array, " d"]) -> dict[str, Array]:
        """The unconstrained value u of each latent site."""
        parts = split(x, tuple(latent.shape for latent in self._latents))
        return {latent.name: part for latent, part in zip(self._latents, parts, strict=True)}

    def _batch(self, indices: Int[Array, " b"]) -> Indices:
        """The indices of every subsampled plate, from those of the first; all of them, if these are all."""
        first, *others = self.plates
        if len(indices) == first.size:
            return {}
        weights = jnp.arange(len(indices), dtype=jnp.uint32) * 2 + 1
        key = jax.random.fold_in(
            jax.random.key(0), (indices.astype(jnp.uint32) * weights).sum(dtype=jnp.uint32)
        )
        return {first.name: indices} | {
            plate.name: permuted(
                jnp.arange(plate.subsample), plate.size, key=jax.random.fold_in(key, i)
            )
            for i, plate in enumerate(others)
        }

    def _is_inside(self, site: Mapping[str, Any]) -> bool:
        return bool(sites.plate_axes(site, {plate.name for plate in self.plates}))

    def _substituted(
        self, x: Float[Array, " d"], indices: Indices, *, key: PRNGKeyArray | None = None
    ) -> Callable[..., Any]:
        """The model with its latent sites at x and the data with these indices; `key` draws any other site."""
        from numpyro.handlers import substitute
        from numpyro.infer.util import _unconstrain_reparam

        values = self.unravel(x)
        for latent in self._latents:
            for plate, axis in latent.plate_axes:
                if plate in indices:
                    own = jnp.asarray(indices[plate])
                    values[latent.name] = jnp.take(values[latent.name], own, axis)
        model = self._seeded(jax.random.key(0) if key is None else key, indices)
        return substitute(model, substitute_fn=partial(_unconstrain_reparam, values))

    def _seeded(self, key: PRNGKeyArray, indices: Indices | None = None) -> Callable[..., Any]:
        from numpyro.handlers import seed

        return seed(self._on(indices or {}), key)

    def _on(self, indices: Indices) -> Callable[..., Any]:
        """The model with its parameters held, and with these indices of its subsampled plates."""
        from numpyro.handlers import substitute

        def fix(message: dict[str, Any]) -> Any:
            if message["type"] == "param":
                return self.held.get(message["name"])
            if message["type"] != "plate" or message["args"][1] in (None, message["args"][0]):
                return None
            size = message["args"][0]
            chosen = indices.get(message["name"], np.arange(size))
            message["args"] = (size, len(chosen))
            return jnp.asarray(chosen)

        return substitute(self._model, substitute_fn=fix)

    def _trace(
        self,
        model: Callable[..., Any],
        args: tuple | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, dict[str, Any]]:
        from numpyro.handlers import trace

        args = self._args if args is None else args
        return trace(model).get_trace(*args, **(self._kwargs if kwargs is None else kwargs))

    def _log_probs(
        self, x: Float[Array, " d"], indices: Indices
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        """The log-probability of each site, scaled and with its Jacobian, and the trace."""
        from numpyro.infer.util import compute_log_probs

        return compute_log_probs(self._substituted(x, indices), self._args, self._kwargs, {})

    def _inspect(
        self,
        read: Callable[[dict[str, dict[str, Any]]], None],
        model: Callable[..., Any],
        args: tuple | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Trace a model abstractly, with its latent sites somewhere in their supports, and read the trace."""
        from numpyro.handlers import seed, substitute
        from numpyro.infer import init_to_feasible

        def run() -> None:
            placed = substitute(seed(model, jax.random.key(0)), substitute_fn=init_to_feasible())
            read(self._trace(placed, args, kwargs))

        try:
            jax.eval_shape(run)
        except GPVIError:
            raise
        except Exception as error:
            if "unique names" in str(error):
                raise InputError(
                    f"the model {_name(self._model)} names a site twice: {first_line(error)}. Give each "
                    "numpyro.sample a name of its own."
                ) from error
            if isinstance(error, jax.errors.TracerArrayConversionError):
                raise InputError(
                    f"the model {_name(self._model)} turns a traced value into a NumPy array "
                    "(TracerArrayConversionError), as NumPy's functions, the columns of pandas and NumPy arrays at the "
                    'indices of a plate do. Write it in jax.numpy, with arrays: df["x"].values, jnp.asarray(y)[i].'
                ) from error
            raise InputError(
                f"the model {_name(self._model)} fails when it is run with the given arguments: "
                f"{described(error)}. Target.from_numpyro(model, *args, **kwargs) passes them as "
                "model(*args, **kwargs)."
            ) from error

    def _read_structure(self, trace: dict[str, dict[str, Any]]) -> None:
        """Read which plates are subsampled and which sites are discrete, and refuse sites without a density."""
        if not trace:
            raise InputError(
                f"{_name(self._model)} has no sites: it is not a NumPyro model. Its unknowns are written "
                "numpyro.sample(name, distribution); for a log-density use gpvi.Target(log_density, dim=d)."
            )
        sites.check_sites(trace)
        sites.check_states(trace)
        self.states = tuple(name for name, site in trace.items() if sites.is_state(site))
        if self.states:
            enumeration.require_funsor(", ".join(self.states))
        self.plates = self._ordered(sites.subsampled_plates(trace))
        self.held = {name: None for name, site in trace.items() if site["type"] == "param"}

    def _ordered(self, plates: tuple[sites.Plate, ...]) -> tuple[sites.Plate, ...]:
        """The plates, the one with the most batches first; refused if it has too few to determine the others."""
        if len(plates) < 2:
            return plates

        def batches(plate: sites.Plate) -> int:
            return math.perm(plate.size, min(plate.subsample, FEWEST_BATCHES))

        first = max(plates, key=batches)
        if batches(first) < FEWEST_BATCHES:
            raise InputError(
                f"the model {_name(self._model)} subsamples the plates {', '.join(p.name for p in plates)}, of which "
                f"the largest, {first.name!r}, has {batches(first):,} batches; {FEWEST_BATCHES:,} are needed to "
                "draw from several plates at a time. Leave subsample_size out of all but one."
            )
        return (first, *(plate for plate in plates if plate is not first))

    def _initial_parameters(self) -> dict[str, PyTree]:
        """The values with which `numpyro.param` sites begin."""
        if not self.held:
            return {}
        from numpyro.handlers import seed, substitute
        from numpyro.infer import init_to_feasible

        def run() -> dict[str, PyTree]:
            model = seed(self._model, jax.random.key(0))
            trace = self._trace(substitute(model, substitute_fn=init_to_feasible()))
            return {name: trace[name]["value"] for name in self.held}

        return jax.tree.map(np.asarray, jax.jit(run)())

    def _read_sites(self, trace: dict[str, dict[str, Any]]) -> None:
        """Read the latent sites, in the order of the model, and the names of all axes."""
        sites.check_terms(trace)
        subsampled = {plate.name for plate in self.plates}
        latents = []
        for name, site in trace.items():
            if not sites.is_latent(site):
                continue
            shape = jnp.shape(sites.unconstrained(name, site))
            event = len(shape) - len(site["fn"].batch_shape)
            axes = sites.plate_axes(site, subsampled)
            along = tuple((plate, axis - event) for plate, axis in axes.items())
            latents.append(sites.Latent(name, shape, along))
        self._latents = tuple(latents)
        self._depth = sites.plate_depth(trace)
        self.dims = sites.axis_names(trace)

    def _medians(self) -> tuple[Float[Array, " d"], dict[str, Array]]:
        """The unconstrained medians of prior draws, and the observations.

        If a site has an improper prior, which cannot be drawn from, all sites take a feasible value instead.
        """
        from numpyro.handlers import substitute
        from numpyro.infer import init_to_feasible, init_to_median

        def run(key: PRNGKeyArray, start: Any) -> tuple[Array, dict[str, Array]]:
            trace = self._trace(substitute(self._seeded(key), substitute_fn=start))
            observed = {
                name: jnp.asarray(site["value"])
                for name, site in trace.items()
                if sites.is_data(site)
            }
            return self._flat(trace), observed

        try:
            x, observed = jax.jit(partial(run, start=init_to_median()))(jax.random.key(0))
        except NotImplementedError:
            x, observed = jax.jit(partial(run, start=init_to_feasible()))(jax.random.key(0))
        return x.astype(self._dtype), observed

    def prior_draws(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """Draws from the prior, unconstrained; none if a site has an improper prior, which cannot be drawn from."""

        def draw(key: PRNGKeyArray) -> Float[Array, " d"]:
            return self._flat(self._trace(self._seeded(key)))

        try:
            return jax.jit(jax.vmap(draw))(jax.random.split(key, n)).astype(self._dtype)
        except NotImplementedError:
            return jnp.zeros((0, self.dim), self._dtype)

    def _flat(self, trace: dict[str, dict[str, Any]]) -> Float[Array, " d"]:
        """The latent sites of a trace, unconstrained, as one vector."""
        lost = [latent.name for latent in self._latents if latent.name not in trace]
        if lost:
            raise InputError(
                f"the model {_name(self._model)} has a site {lost[0]!r} when it is first called, and not when it is "
                "called again. Give its sites names that do not depend on what changes between calls."
            )
        parts = [sites.unconstrained(latent.name, trace[latent.name]) for latent in self._latents]
        return jnp.concatenate([jnp.ravel(part) for part in parts])

    def _check_batches(self) -> None:
        """Refuse a model that does not index its data by what the subsampled plates yield."""
        if not self.plates:
            return
        x = jax.ShapeDtypeStruct((self.dim,), self._dtype)
        indices = jax.ShapeDtypeStruct((self.plates[0].subsample,), jnp.result_type(int))
        try:
            jax.eval_shape(self.log_inside, x, indices)
        except Exception as error:
            names = ", ".join(repr(plate.name) for plate in self.plates)
            counts = ", ".join(f"{plate.subsample} of {plate.size}" for plate in self.plates)
            raise InputError(
                f"the model {_name(self._model)} subsamples plate {names} and fails on a batch of {counts}: "
                f"{described(error)}. Index the data by what the plate yields (with plate as i: y[i]), or "
                "wrap them in numpyro.subsample."
            ) from error

    def _check_states(self) -> None:
        """Refuse a model whose discrete sites NumPyro cannot sum out."""
        if not self.states:
            return
        try:
            x = jax.ShapeDtypeStruct((self.dim,), self._dtype)
            jax.eval_shape(self.log_joint, x)
            jax.eval_shape(self.constrain, x)
        except Exception as error:
            raise InputError(
                f"the model {_name(self._model)} fails when its discrete latents ({', '.join(self.states)}) are summed "
                f"out: {described(error)}. Each takes all its values at once, on an axis of its own to the "
                "left: index by it (mu[z]) instead of branching on it, and put all data into plates."
            ) from error

    def _find_start(self, medians: Float[Array, " d"]) -> np.ndarray:
        """The prior medians if log p and its gradient are finite there, else the first such point of random ones."""
        point = finite_point(self.log_joint, medians)
        if point is not None:
            return point
        finite = jnp.where(jnp.isfinite(medians), medians, 0)
        log_probs = jax.jit(lambda x: self._log_probs(x, {})[0])(finite)
        bad = {name: float(value) for name, value in log_probs.items() if not np.isfinite(value)}
        raise InputError(
            f"no point with a finite log-density and gradient was found for the model {_name(self._model)} in "
            f"{ATTEMPTS} attempts; at the prior's medians the sites {bad or 'are finite, their gradients are not'}. "
            "Look for observations that are NaN or outside the support of their distribution, and for priors that "
            "exclude each other."
        )


def _copied(tree: PyTree, dtype: np.dtype) -> PyTree:
    """The arguments with NumPy arrays copied, and floats converted to the target's dtype.

    The copies stay NumPy arrays, so that a model may compute shapes from them. JAX caches the device copy of a NumPy
    array by its identity, and a float32 and a float64 target must not share one.
    """

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        return leaf.astype(dtype if np.issubdtype(leaf.dtype, np.floating) else leaf.dtype)

    return jax.tree.map(copy, tree)


def _total(values: Any) -> Scalar:
    return jnp.asarray(sum(values, start=0.0))


def _check_callable(model: Any) -> None:
    if not callable(model):
        raise InputError(
            f"model is {brief(model)}; pass the NumPyro model itself, a function with numpyro.sample statements, "
            "and its arguments after it."
        )


def check_options(model: Any, options: Mapping[str, Any]) -> None:
    """Refuse an option of `Target.from_numpyro` that the model takes as an argument, too."""
    _check_callable(model)
    try:
        taken = inspect.signature(model).parameters.keys()
    except (TypeError, ValueError):
        return
    if isinstance(model, partial):
        taken -= model.keywords.keys()
    for name, value in options.items():
        if value is not None and name in taken:
            raise InputError(
                f"{name}={value!r} is meant for the model or for the target: both take it. "
                f"Bind the model's own first: functools.partial(model, {name}=…)."
            )


def _name(model: Any) -> str:
    return getattr(model, "__name__", None) or type(model).__name__


def _require_numpyro() -> None:
    try:
        import numpyro  # noqa: F401
    except ImportError as error:
        raise NotAvailableError(
            "NumPyro is not installed, and this target is one of its models: pip install 'gpvi[numpyro]'."
        ) from error
