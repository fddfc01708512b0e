r"""NumPyro models of a flat vector.

A site with support S is written as θ = T(u) with NumPyro's bijection T: R^m → S, and x is the concatenation of all u.
The log-density of x is log p(θ, y) + Σ log|det T′(u)|.

A plate of N with `subsample_size=B` gives the mini-batch form. Sites inside the plate make up the sum over data, which
a batch scales by N/B; sites outside it make up the prior; and the data are the indices 0…N−1. A latent site inside the
plate keeps all its N values in x, and a batch uses those of its own indices.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi._inputs import precision
from gpvi.errors import InputError, NotAvailableError
from gpvi.targets.coordinate_names import entry_names
from gpvi.targets.model import split

ATTEMPTS = 100
"""The most points that are tried in search of one with a finite log-density."""


class Latent(NamedTuple):
    """A latent site: its name, the shape of u, and the axis of u along the subsampled plate (negative), if any."""

    name: str
    shape: tuple[int, ...]
    plate_axis: int | None


class Plate(NamedTuple):
    """A plate that the model subsamples."""

    name: str
    size: int
    subsample: int


class NumPyroModel:
    """A NumPyro model with its arguments, which are constants of the compiled program.

    Attributes
    ----------
    dim, names, initial
        The dimension of x, the names of its coordinates, and a point where the log-density is finite.
    plate
        The plate that is subsampled, if any.
    observed
        The values of the observed sites.
    dims
        The names of the axes of each site, taken from its plates.
    """

    def __init__(self, model: Any, args: tuple, kwargs: Mapping[str, Any], dtype: np.dtype):
        _require_numpyro()
        _check_callable(model)
        self._model, self._dtype = model, dtype
        self._args, self._kwargs = _copied((args, dict(kwargs)), dtype)
        self._latents: Sequence[Latent] = ()
        self.plate: Plate | None = None
        self.dims: dict[str, tuple[str, ...]] = {}
        self._all_indices: np.ndarray | None = None
        with precision(dtype):
            self._inspect(self._read_plate)
            self._inspect(self._read_sites)
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
            medians, observed = self._medians()
            self.observed = {name: np.asarray(value) for name, value in observed.items()}
            self.initial = self._find_start(medians)

    def target_arguments(self) -> dict[str, Any]:
        """The arguments of `Target` for this model: a log-density, or the mini-batch form if a plate is subsampled."""
        start = {"dim": self.dim, "initial": self.initial, "names": self.names}
        if self.plate is None:
            return {"log_density": self.log_joint, **start}
        functions = {"log_likelihood": self.log_inside, "log_prior": self.log_outside}
        batches = {"data": np.arange(self.plate.size), "batch_size": self.plate.subsample}
        return functions | batches | start

    def log_joint(self, x: Float[Array, " d"]) -> Scalar:
        """log p(θ(x), y) + log|det θ′(x)| of all data."""
        log_probs, _ = self._log_probs(x, self._all_indices)
        return _total(log_probs.values())

    def log_inside(self, x: Float[Array, " d"], indices: Int[Array, " b"]) -> Scalar:
        """The unscaled sum over the sites inside the subsampled plate, for the data with these indices."""
        assert self.plate is not None
        log_probs, trace = self._log_probs(x, indices)
        inside = _total(value for name, value in log_probs.items() if self._is_inside(trace[name]))
        return inside * (len(indices) / self.plate.size)

    def log_outside(self, x: Float[Array, " d"]) -> Scalar:
        """The sum over the sites outside the subsampled plate."""
        log_probs, trace = self._log_probs(x, self._all_indices)
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

    def constrain(self, x: Float[Array, " d"]) -> dict[str, Array]:
        """The values of the latent sites, in their supports, and of the deterministic sites."""
        trace = self._trace(self._substituted(x, self._all_indices))
        return {
            name: jnp.asarray(site["value"])
            for name, site in trace.items()
            if (site["type"] == "deterministic" and site["value"] is not None) or _is_latent(site)
        }

    def predict(self, x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]:
        """One draw of the observed sites given x."""
        from numpyro.handlers import uncondition

        trace = self._trace(uncondition(self._substituted(x, self._all_indices, key=key)))
        return {
            name: trace[name]["value"] for name in self.observed if not trace[name]["is_observed"]
        }

    def log_likelihood(self, x: Float[Array, " d"]) -> dict[str, Array]:
        """log p(y_i | x) of each observation, by site."""
        trace = self._trace(self._substituted(x, self._all_indices))
        return {
            name: trace[name]["fn"].log_prob(trace[name]["value"])
            for name in self.observed
            if trace[name]["is_observed"]
        }

    def unravel(self, x: Float[Array, " d"]) -> dict[str, Array]:
        """The unconstrained value u of each latent site."""
        parts = split(x, tuple(latent.shape for latent in self._latents))
        return {latent.name: part for latent, part in zip(self._latents, parts, strict=True)}

    def _is_inside(self, site: Mapping[str, Any]) -> bool:
        return self.plate is not None and _in_plate(site, self.plate.name) is not None

    def _substituted(
        self,
        x: Float[Array, " d"],
        indices: Int[Array, " b"] | np.ndarray | None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Callable[..., Any]:
        """The model with its latent sites at x and the data with these indices; `key` draws any other site."""
        from numpyro import handlers
        from numpyro.infer.util import _unconstrain_reparam

        values = self.unravel(x)
        if indices is not None:
            values |= {
                latent.name: jnp.take(values[latent.name], jnp.asarray(indices), latent.plate_axis)
                for latent in self._latents
                if latent.plate_axis is not None
            }
        model = handlers.seed(self._on(indices), jax.random.key(0) if key is None else key)
        return handlers.substitute(model, substitute_fn=partial(_unconstrain_reparam, values))

    def _on(self, indices: Int[Array, " b"] | np.ndarray | None) -> Callable[..., Any]:
        """The model with the indices of its subsampled plate fixed."""
        if indices is None or self.plate is None:
            return self._model
        from numpyro import handlers

        name = self.plate.name

        def fix(message: dict[str, Any]) -> Array | None:
            if message["type"] != "plate" or message["name"] != name:
                return None
            message["args"] = (message["args"][0], len(indices))
            return jnp.asarray(indices)

        return handlers.substitute(self._model, substitute_fn=fix)

    def _trace(self, model: Callable[..., Any]) -> dict[str, dict[str, Any]]:
        from numpyro.handlers import trace

        return trace(model).get_trace(*self._args, **self._kwargs)

    def _log_probs(
        self, x: Float[Array, " d"], indices: Int[Array, " b"] | np.ndarray | None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        """The log-probability of each site, scaled and with its Jacobian, and the trace."""
        from numpyro.infer.util import compute_log_probs

        return compute_log_probs(self._substituted(x, indices), self._args, self._kwargs, {})

    def _inspect(self, read: Callable[[dict[str, dict[str, Any]]], None]) -> None:
        """Trace the model abstractly, with its latent sites somewhere in their supports, and read the trace."""
        from numpyro.handlers import seed, substitute
        from numpyro.infer import init_to_feasible

        def run() -> None:
            model = seed(self._on(self._all_indices), jax.random.key(0))
            read(self._trace(substitute(model, substitute_fn=init_to_feasible())))

        try:
            jax.eval_shape(run)
        except InputError:
            raise
        except Exception as error:
            if "unique names" in str(error):
                raise InputError(
                    f"the model {_name(self._model)} names a site twice: {error}. Give each numpyro.sample a name of "
                    "its own."
                ) from error
            if isinstance(error, jax.errors.TracerArrayConversionError):
                raise InputError(
                    f"the model {_name(self._model)} turns an unknown into a NumPy array while it is traced "
                    "(TracerArrayConversionError), as NumPy's functions and the columns of pandas do. Write it in "
                    'jax.numpy, and make arrays of columns: df["x"].values, or np.asarray.'
                ) from error
            raise InputError(
                f"the model {_name(self._model)} fails when it is run with the given arguments: "
                f"{type(error).__name__}: {error}. Target.from_numpyro(model, *args, **kwargs) passes them as "
                "model(*args, **kwargs)."
            ) from error

    def _read_plate(self, trace: dict[str, dict[str, Any]]) -> None:
        if not trace:
            raise InputError(
                f"{_name(self._model)} has no sites: it is not a NumPyro model. Its unknowns are written "
                "numpyro.sample(name, distribution); for a log-density use gpvi.Target(log_density, dim=d)."
            )
        _check_sites(trace)
        plates = [
            Plate(name, *site["args"])
            for name, site in trace.items()
            if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])
        ]
        if len(plates) > 1:
            raise InputError(
                f"the model {_name(self._model)} subsamples the plates {', '.join(p.name for p in plates)}; one "
                "can be. Leave subsample_size out of the others."
            )
        if plates:
            self.plate = plates[0]
            self._all_indices = np.arange(plates[0].size)

    def _read_sites(self, trace: dict[str, dict[str, Any]]) -> None:
        """Read the latent sites, in the order of the model, and the names of all axes."""
        _check_terms(trace)
        latents = []
        for name, site in trace.items():
            if not _is_latent(site):
                continue
            shape = jnp.shape(_unconstrained(name, site))
            frame = None if self.plate is None else _in_plate(site, self.plate.name)
            event = len(shape) - len(site["fn"].batch_shape)
            latents.append(Latent(name, shape, None if frame is None else frame.dim - event))
        self._latents = tuple(latents)
        self.dims = _dims(trace)

    def _medians(self) -> tuple[Float[Array, " d"], dict[str, Array]]:
        """The unconstrained medians of prior draws, and the observations.

        If a site has an improper prior, which cannot be drawn from, all sites take a feasible value instead.
        """
        from numpyro.handlers import seed, substitute
        from numpyro.infer import init_to_feasible, init_to_median

        def run(key: PRNGKeyArray, start: Any) -> tuple[Array, dict[str, Array]]:
            model = seed(self._on(self._all_indices), key)
            trace = self._trace(substitute(model, substitute_fn=start))
            parts = [_unconstrained(latent.name, trace[latent.name]) for latent in self._latents]
            observed = {
                name: jnp.asarray(site["value"]) for name, site in trace.items() if _is_data(site)
            }
            return jnp.concatenate([jnp.ravel(part) for part in parts]), observed

        try:
            x, observed = jax.jit(partial(run, start=init_to_median()))(jax.random.key(0))
        except NotImplementedError:
            x, observed = jax.jit(partial(run, start=init_to_feasible()))(jax.random.key(0))
        return x.astype(self._dtype), observed

    def _check_batches(self) -> None:
        """Refuse a model that does not index its data by what the subsampled plate yields."""
        if self.plate is None:
            return
        x = jax.ShapeDtypeStruct((self.dim,), self._dtype)
        indices = jax.ShapeDtypeStruct((self.plate.subsample,), jnp.result_type(int))
        try:
            jax.eval_shape(self.log_inside, x, indices)
        except Exception as error:
            raise InputError(
                f"the model {_name(self._model)} subsamples plate {self.plate.name!r} and fails on a batch of "
                f"{self.plate.subsample} of {self.plate.size}: {type(error).__name__}: {error}. Index the data by what "
                "the plate yields (with plate as i: y[i]), or wrap them in numpyro.subsample."
            ) from error

    def _find_start(self, medians: Float[Array, " d"]) -> np.ndarray:
        """The prior medians if log p and its gradient are finite there, else the first such point of random ones."""
        evaluate = jax.jit(jax.value_and_grad(self.log_joint))
        point = medians
        for attempt in range(ATTEMPTS):
            value, slope = evaluate(point)
            if np.isfinite(value) and np.isfinite(slope).all():
                return np.asarray(point, np.float64)
            key = jax.random.fold_in(jax.random.key(0), attempt)
            radius = 2.0 * 0.9**attempt
            point = jax.random.uniform(key, (self.dim,), self._dtype, -radius, radius)
        finite = jnp.where(jnp.isfinite(medians), medians, 0)
        log_probs = jax.jit(lambda x: self._log_probs(x, self._all_indices)[0])(finite)
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


def _unconstrained(name: str, site: Mapping[str, Any]) -> Array:
    """The unconstrained value u = T^{-1}(θ) of a latent site."""
    from numpyro.distributions import biject_to

    try:
        return biject_to(site["fn"].support).inv(site["value"])
    except NotImplementedError as error:
        raise InputError(
            f"site {name!r} has support {site['fn'].support}, which no bijection from R^m covers. "
            "Use another parametrisation, or one of numpyro.infer.reparam."
        ) from error


def _total(values: Any) -> Scalar:
    return jnp.asarray(sum(values, start=0.0))


def _is_latent(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _is_data(site: Mapping[str, Any]) -> bool:
    """Whether a site is an observation. A `numpyro.factor` is not: it is an observed site with an empty value."""
    return site["type"] == "sample" and site["is_observed"] and np.size(site["value"]) > 0


def _in_plate(site: Mapping[str, Any], name: str) -> Any:
    """The frame of the plate with this name if the site lies inside it, else None."""
    frames = site.get("cond_indep_stack", ())
    return next((frame for frame in frames if frame.name == name), None)


def _dims(trace: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The names of the axes of every site: that of the plate an axis runs along, or else `site_dim_i`."""
    sizes: dict[str, set[int]] = {}
    for site in trace.values():
        for frame in site.get("cond_indep_stack", ()):
            sizes.setdefault(frame.name, set()).add(frame.size)
    usable = {
        name
        for name, lengths in sizes.items()
        if len(lengths) == 1 and trace.get(name, {"type": "plate"})["type"] == "plate"
    }
    dims = {}
    for name, site in trace.items():
        if site["type"] not in ("sample", "deterministic") or site["value"] is None:
            continue
        shape = np.shape(site["value"])
        names = [f"{name}_dim_{i}" for i in range(len(shape))]
        event = site["fn"].event_dim if site["type"] == "sample" else 0
        for frame in site.get("cond_indep_stack", ()):
            axis = len(shape) - event + frame.dim
            if frame.name in usable and 0 <= axis < len(shape) and shape[axis] == frame.size:
                names[axis] = frame.name
        dims[name] = tuple(names)
    return dims


def _check_callable(model: Any) -> None:
    if not callable(model):
        raise InputError(
            f"model is {model!r:.80}; pass the NumPyro model itself, a function with numpyro.sample statements, "
            "and its arguments after it."
        )


def _check_sites(trace: Mapping[str, Any]) -> None:
    from numpyro.distributions import Delta

    for name, site in trace.items():
        if site["type"] in ("param", "mutable"):
            raise InputError(
                f"site {name!r} is a numpyro.{site['type']}, which has no prior. Give it one with numpyro.sample "
                "(ImproperUniform for none), or pass its value as an argument."
            )
        if not _is_latent(site):
            continue
        if site["fn"].support.is_discrete:
            raise InputError(
                f"site {name!r} is a discrete latent ({type(site['fn']).__name__}), and a density on R^d needs "
                "continuous ones. Marginalise it out by hand: a mixture is numpyro.distributions.MixtureSameFamily or "
                "MixtureGeneral; other sums are a jax.scipy.special.logsumexp over its values, or a forward recursion "
                "over a chain of states, in numpyro.factor. If it is data, pass it as obs=."
            )
        if isinstance(site["fn"], Delta):
            raise InputError(
                f"site {name!r} has a Delta distribution, which has no density: use numpyro.deterministic."
            )


def _check_terms(trace: Mapping[str, Any]) -> None:
    """Refuse an observed site that compares every datum with the mean of every other one, as (N, 1) against (N,) does.

    The sum over such pairs looks like any other. Allowed are data repeated along a plate, and a single value that
    broadcasts.
    """
    for name, site in trace.items():
        if not _is_data(site):
            continue
        fn_shape = (*site["fn"].batch_shape, *site["fn"].event_shape)
        shape = jnp.broadcast_shapes(fn_shape, np.shape(site["value"]))
        value, means = (_padded(each, len(shape)) for each in (np.shape(site["value"]), fn_shape))
        event = site["fn"].event_dim
        plates = {frame.dim - event for frame in site["cond_indep_stack"]}
        axes = range(-len(shape), 0)
        data = {i for i in axes if value[i] > 1 and (i < -event or means[i] == 1)}
        lengths = {value[i] for i in data - plates}
        if data and any(
            shape[i] > value[i] and (i not in plates or shape[i] in lengths) for i in axes
        ):
            raise InputError(
                f"site {name!r} has a value of shape {np.shape(site['value'])} and a distribution of shape {fn_shape}, "
                f"which broadcast to {shape}: data are paired with the means of others. Give both the same shape "
                "(compare (N, 1) with (N,)), or repeat the data by a numpyro.plate."
            )


def _padded(shape: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The shape with ones in front, up to this length."""
    return (1,) * (length - len(shape)) + shape


def check_options(model: Any, options: Mapping[str, Any]) -> None:
    """Refuse an option of `Target.from_numpyro` that the model takes as an argument, too."""
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
