r"""Targets: a posterior known up to a constant, as log p(x) and its score ∇ log p(x).

The mini-batch form replaces the log-likelihood of all N data by N/B times that of a batch of B,
log p(x) = (N/B Σ_{i∈batch} log p(y_i | x) + log p(x)) / T, whose score is unbiased for the full one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi._inputs import (
    cast_in_range,
    device_dtype,
    format_point,
    on_device,
    precision,
    require_finite,
)
from gpvi.errors import GPVIError, InputError, NotAvailableError
from gpvi.parallel.hosts import at_hand, parts
from gpvi.specs import is_number, is_whole
from gpvi.targets._indexing import index_out_of_range
from gpvi.targets._numpyro import NumPyroModel, check_options
from gpvi.targets._pytree import PytreeModel
from gpvi.targets.density import at_once
from gpvi.targets.model import Model
from gpvi.targets.preflight import Preflight, preflight
from gpvi.targets.stream import Stream

MOST_DIMENSIONS = 2**31 - 1
SAMPLED_ROWS = 10_000
"""Rows that stand for all of a stream where a start is looked for."""
BESIDE = 0.1
"""How far from an origin without a gradient training starts, in each coordinate."""


class _NoGradientError(InputError):
    """The log-density is finite at the starting point, its gradient not."""


class _Always(eqx.Module):
    """key ↦ one point."""

    point: Float[Array, " d"]

    def __call__(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        return self.point


class Target(eqx.Module):
    """A log-density on R^d, whole or in mini-batch form.

    `Target(log_density, dim=d)`, or `Target(log_likelihood=…, log_prior=…, data=…, dim=d)`.

    Parameters
    ----------
    log_density: the unnormalised log p at one point, (d,) → scalar.
    dim: d. May be left out where `initial` is given.
    log_likelihood: (x, batch) → log-likelihood of each datum of the batch, (B,), or their sum.
    log_prior: x → scalar; flat when left out.
    data: a pytree of arrays that share their first axis, of length N; or a `gpvi.Stream` of rows that stay on disk.
    temperature: T; the whole log-density is divided by it (1 is the posterior, < 1 a cold one).
    initial: where training starts: a point where the log-density is finite (by default the origin, or a point
        beside it where it has no gradient there, as the length of x has none), or a function key → point that draws
        such points, as a prior or the initialisation of a network does.
    dtype: float32 or float64; follows JAX's x64 setting by default.
    names: one name for each coordinate, or a function that gives them when they are asked for.
    batch_size: how many data a step sees where `gpvi.fit` is not told; all by default.
    model: what names, constrains and predicts (see `from_numpyro` and `from_pytree`).

    Functions are traced once for each target: after changing what they close over, make a new one. An `equinox.Module`
    holds its data as leaves and closes over nothing, so that targets made of modules share compiled programs.
    """

    dim: int = eqx.field(static=True)
    temperature: float = eqx.field(static=True)
    dtype: np.dtype = eqx.field(static=True)
    naming: tuple[str, ...] | Callable[[], Sequence[str]] | None = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    model: Model | None = eqx.field(static=True)
    initial: Float[Array, " d"]
    data: Any
    """A pytree of arrays, or a `Stream`."""
    _at_origin: bool = eqx.field(static=True)
    """Whether `initial` was left open."""
    _draw_initial: Callable | None
    _log_density: Callable | None
    _log_likelihood: Callable | None
    _log_prior: Callable | None
    _traced: object = eqx.field(static=True)

    def __init__(
        self,
        log_density: Callable | None = None,
        dim: int | None = None,
        *,
        log_likelihood: Callable | None = None,
        log_prior: Callable | None = None,
        data: PyTree = None,
        temperature: float | int = 1.0,
        initial: Sequence[float] | Array | np.ndarray | Callable | None = None,
        dtype: DTypeLike | None = None,
        names: Sequence[str] | Callable[[], Sequence[str]] | None = None,
        batch_size: int | None = None,
        model: Model | None = None,
    ):
        _check_functions(log_density, log_likelihood, log_prior, data)
        self._at_origin = initial is None
        self._draw_initial = initial if callable(initial) else None
        start = initial(jax.random.key(0)) if callable(initial) else initial
        if dim is None and start is not None and np.ndim(start) == 1:
            dim = np.shape(start)[0]
        self.dim = _checked_dim(dim)
        self.temperature = _checked_temperature(temperature)
        self.dtype = _checked_dtype(dtype)
        point = _checked_start(start, self.dim)
        self.naming = names if names is None or callable(names) else _checked_names(names, self.dim)
        with self.precision():
            self.initial = jnp.asarray(point, self.dtype)
            self.data = _checked_data(data)
            functions = tuple(map(_with_jax_arrays, (log_density, log_likelihood, log_prior)))
        closed = all(f is None or isinstance(f, eqx.Module) for f in functions)
        self._traced = None if closed else object()
        self._log_density, self._log_likelihood, self._log_prior = functions
        self.batch_size = _checked_batch_size(batch_size, self.size or 0)
        self.model = model

    @classmethod
    def from_numpyro(
        cls,
        model: Any,
        *args: Any,
        dtype: DTypeLike | None = None,
        temperature: float | int | None = None,
        **kwargs: Any,
    ) -> "Target":
        """The posterior of a NumPyro model called as `model(*args, **kwargs)`, with its data as `obs=`.

        Every continuous site becomes unconstrained coordinates; `posterior.draws` gives them back by name. A plate with
        `subsample_size=B` makes a target in mini-batch form, trained on batches of B.
        """
        check_options(model, {"dtype": dtype, "temperature": temperature})
        dtype = np.dtype(jnp.result_type(float) if dtype is None else dtype)
        found = NumPyroModel(model, args, kwargs, dtype)
        return cls(
            **found.form(),
            temperature=1.0 if temperature is None else temperature,
            dtype=dtype,
            model=found,
        )

    @classmethod
    def from_pytree(cls, log_density: Callable | None, example: PyTree, **options: Any) -> "Target":
        """A log-density of any pytree of floats; `example` gives its structure and the starting point.

        `options` are those of `Target`; `log_likelihood` and `log_prior`, too, take the tree first.
        """
        found = PytreeModel(example)
        functions = {"log_density": log_density} | {
            name: options.pop(name, None) for name in ("log_likelihood", "log_prior")
        }
        of_vector = {name: f if f is None else found.of_tree(f) for name, f in functions.items()}
        start = {"initial": found.initial, "names": found.names}
        return cls(**of_vector, **(start | options), model=found)

    def debug(self, *, key: PRNGKeyArray | None = None) -> Preflight:
        """Look for what would make training fail: print the result; see `findings` and `ok` of it.

        Of streamed data it sees a sample.
        """
        with self.precision():
            some = self.sample()
            return preflight(
                self.log_density if some is None else partial(self.log_density, batch=some),
                self.initial,
                names=self.names,
                key=jax.random.key(0) if key is None else key,
                returned=self._returned,
                log_likelihood=self._log_likelihood,
                data=self.data if some is None else some,
                in_double=self.model.finite_in_double
                if isinstance(self.model, NumPyroModel)
                else None,
            )

    def precision(self) -> AbstractContextManager[None]:
        """A context in which JAX computes in this target's dtype."""
        return precision(self.dtype)

    @property
    def names(self) -> tuple[str, ...]:
        """One for each coordinate; made when asked for, since a network may have 10⁷ weights."""
        if self.naming is None:
            return tuple(f"x[{i}]" for i in range(self.dim))
        return tuple(self.naming() if callable(self.naming) else self.naming)

    @property
    def size(self) -> int | None:
        """N, the number of data in the mini-batch form."""
        if isinstance(self.data, Stream):
            return self.data.size
        leaves = jax.tree.leaves(self.data)
        return leaves[0].shape[0] if leaves else None

    @property
    def stream(self) -> Stream | None:
        """The data, where they are streamed."""
        return self.data if isinstance(self.data, Stream) else None

    def batch(self, indices: Int[Array | np.ndarray, " b"]) -> PyTree:
        """The data with these indices; of a stream they are read, so that the indices must be at hand."""
        if isinstance(self.data, Stream):
            return on_device(self.data.rows(np.asarray(indices)))
        return jax.tree.map(lambda leaf: leaf[indices], self.data)

    def sample(self) -> PyTree:
        """Rows from everywhere that stand for all data, where these are streamed or lie in other processes.

        None where they are at hand.
        """
        if isinstance(self.data, Stream):
            few = min(SAMPLED_ROWS, self.data.batches(1))
            return on_device(self.data.sample(few))
        if self.size is None or all(a.is_fully_addressable for a in jax.tree.leaves(self.data)):
            return None
        few = np.linspace(0, self.size - 1, min(SAMPLED_ROWS, self.size)).astype(int)
        return jax.tree.map(lambda leaf: jnp.asarray(at_hand(leaf[few])), self.data)

    @property
    def draws_its_start(self) -> bool:
        """Whether `initial` is a distribution of starting points."""
        return self._draw_initial is not None

    def starting_points(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """n points to start particles from: drawn from `initial`, or standard normal around it."""
        if self._draw_initial is None:
            return self.initial + jax.random.normal(key, (n, self.dim), self.dtype)
        return jax.vmap(self._draw_initial)(jax.random.split(key, n)).astype(self.dtype)

    def starting_at(self, point: Float[Array | np.ndarray, " d"]) -> "Target":
        """The same target, which draws no other start than this point; the data are shared."""
        with self.precision():
            point = jnp.asarray(point, self.dtype)
        return eqx.tree_at(
            lambda target: (target.initial, target._draw_initial),
            self,
            (point, _Always(point)),
            is_leaf=lambda part: part is None,
        )

    def log_density(self, x: Float[Array, " d"], batch: PyTree = None) -> Scalar:
        """log p(x), estimated from `batch` where one is given."""
        if self._log_density is not None:
            return self._log_density(x) / self.temperature
        assert self._log_likelihood is not None and self.size is not None
        if batch is None and isinstance(self.data, Stream):
            return self.log_densities(x[None])[0]
        batch = self.data if batch is None else batch
        terms = jnp.asarray(self._log_likelihood(x, batch))
        total = terms.sum() * (self.size / jax.tree.leaves(batch)[0].shape[0])
        prior = 0.0 if self._log_prior is None else self._log_prior(x)
        return (total + prior) / self.temperature

    def log_densities(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log p at many points; a stream is passed over once, block by block, and never kept."""
        stream, log_likelihood = self.data, self._log_likelihood
        if not isinstance(stream, Stream) or log_likelihood is None:
            return jax.lax.map(self.log_density, x, batch_size=at_once(self.dim))

        def block(first: Int[Array, ""], count: int) -> PyTree:
            form = jax.tree.map(
                lambda a: jax.ShapeDtypeStruct((count, *a.shape), device_dtype(a.dtype)),
                stream.row,
            )

            def read(first: Any) -> PyTree:
                found = stream.rows(int(first) + np.arange(count))
                return jax.tree.map(
                    lambda a, as_: cast_in_range(a, np.dtype(as_.dtype)), found, form
                )

            return jax.pure_callback(read, form, first)

        @partial(jax.checkpoint, static_argnums=(1,))
        def terms(first: Int[Array, ""], count: int, x: Float[Array, "n d"]) -> Float[Array, " n"]:
            batch = block(first, count)
            return jax.lax.map(
                jax.checkpoint(lambda point: jnp.sum(log_likelihood(point, batch))),
                x,
                batch_size=at_once(self.dim),
            ).astype(self.dtype)

        count = stream.block
        whole, rest = divmod(stream.size, count)
        total, _ = jax.lax.scan(
            lambda total, number: (total + terms(number * count, count, x), None),
            jnp.zeros(len(x), self.dtype),
            jnp.arange(whole),
        )
        if rest:
            total = total + terms(jnp.asarray(whole * count), rest, x)
        prior = 0.0 if self._log_prior is None else jax.vmap(self._log_prior)(x)
        return (total + prior) / self.temperature

    def local_log_density(
        self,
        mean: Float[Array, " d"],
        scale: Float[Array, " d"],
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> Scalar:
        """An estimate of E log p(x) under x ~ N(mean, scale²) in which each datum has an x of its own.

        It needs a `log_likelihood` with a method `local(mean, scale, batch, key=key)`, as those of `gpvi.bnn` are.
        """
        local = getattr(self._log_likelihood, "local", None)
        if local is None or self.size is None or (batch is None and self.stream is not None):
            raise NotAvailableError(
                "this target's log-likelihood cannot draw for each datum apart. Use MeanFieldVI(local=False), or a "
                "network of gpvi.bnn (with batch_size=, where its data are streamed)."
            )
        batch = self.data if batch is None else batch
        likelihood_key, prior_key = jax.random.split(key)
        total = local(mean, scale, batch, key=likelihood_key).sum()
        total = total * (self.size / jax.tree.leaves(batch)[0].shape[0])
        if self._log_prior is not None:
            x = mean + scale * jax.random.normal(prior_key, mean.shape, mean.dtype)
            total = total + self._log_prior(x)
        return total / self.temperature

    def suggestion(self) -> Any | None:
        """How to train it, where its log-likelihood knows, as that of a network does."""
        suggest = getattr(self._log_likelihood, "suggestion", None)
        return None if suggest is None else suggest(self.dim)

    @property
    def log_likelihood_terms(self) -> Callable | None:
        """x → the log-likelihood of all data, one value for each where the function gives that.

        None of streamed data: a value for each of them at every draw would not fit, either.
        """
        log_likelihood, data = self._log_likelihood, self.data
        if log_likelihood is None or isinstance(data, Stream):
            return None
        return lambda x: log_likelihood(x, data)

    def _returned(self, x):
        """What the given functions return at x, before it is scaled."""
        if self._log_likelihood is None:
            return self._log_density(x)  # pyright: ignore[reportOptionalCall]
        total = jnp.sum(self._log_likelihood(x, self._some_data()))
        return total if self._log_prior is None else total + self._log_prior(x)

    def _some_data(self) -> PyTree:
        """All of them; a few of a stream."""
        few = isinstance(self.data, Stream)
        return self.batch(np.arange(min(8, self.data.size))) if few else self.data

    def score(self, x: Float[Array, " d"], batch: PyTree = None) -> Float[Array, " d"]:
        """∇ log p(x)."""
        return jax.grad(self.log_density)(x, batch)

    def checked(self, batch_size: int | None = None) -> "Target":
        """Itself, once `check` has passed; from beside an origin that nobody chose, where only its gradient fails."""
        try:
            self.check(batch_size)
        except _NoGradientError:
            if not self._at_origin or self.draws_its_start:
                raise
            beside = BESIDE * jax.random.normal(jax.random.key(0), (self.dim,), self.dtype)
            moved, opposite = (eqx.tree_at(lambda t: t.initial, self, x) for x in (beside, -beside))
            if not moved._passes(batch_size) or not opposite._passes(batch_size):
                raise
            return moved
        return self

    def _passes(self, batch_size: int | None) -> bool:
        try:
            self.check(batch_size)
        except InputError:
            return False
        return True

    def check(self, batch_size: int | None = None) -> None:
        """Refuse a log-density that cannot be used, before anything long is compiled.

        Values are those of all data or, given a batch size, of as many data: training sees no more at once. Of
        streamed data they are those of a sample.
        """
        shape = jax.ShapeDtypeStruct((self.dim,), self.dtype)
        self._check_returned(shape)
        self._check_terms(shape)
        batch = self.sample() if batch_size is None else self.batch(jnp.arange(batch_size))
        self._check_start(batch)

    def _check_returned(self, shape: jax.ShapeDtypeStruct) -> None:
        """Refuse functions that fail on a point of this shape, read beyond it, or do not return one float."""
        try:
            out = jax.eval_shape(self._returned, shape)
        except GPVIError:
            raise
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            raise InputError(
                "the log-density needs the values of x as it is traced: NumPy, SciPy and math do, and so do `if` and "
                "`while` on x, float(x) and x[x > 0]. Write it in jax.numpy and jax.scipy, and choices by jnp.where."
            ) from error
        except Exception as error:  # whatever the user's function raises
            raise InputError(
                f"the log-density fails on a vector of shape ({self.dim},): {type(error).__name__}: {error}. "
                f"Check dim={self.dim} and that the function takes one point."
            ) from error
        beyond = index_out_of_range(self._returned, self.dim, self.dtype)
        if beyond is not None:
            raise InputError(
                f"the log-density reads coordinate {beyond} of a point with {self.dim}, which JAX would take for "
                f"the last one. Check dim={self.dim}."
            )
        if not isinstance(out, jax.ShapeDtypeStruct) or out.shape != ():
            raise InputError(
                f"the log-density returns {getattr(out, 'shape', out)} at one point; it must return a scalar. "
                "Sum over data inside it, and leave batching over points to this library."
            )
        if not jnp.issubdtype(out.dtype, jnp.floating):
            raise InputError(f"the log-density returns dtype {out.dtype}; it must return a float.")

    def _check_terms(self, shape: jax.ShapeDtypeStruct) -> None:
        """Refuse a likelihood of pairs of data, as (N, 1) less (N,) makes it, whose sum looks like any.

        Several values for each datum, (N, K), sum to its own.
        """
        if self._log_likelihood is None:
            return
        data, log_likelihood = self._some_data(), self._log_likelihood
        number = jax.tree.leaves(data)[0].shape[0]
        terms = jax.eval_shape(lambda x: jnp.asarray(log_likelihood(x, data)), shape)
        if number > 1 and terms.shape.count(number) > 1:
            raise InputError(
                f"log_likelihood returns shape {terms.shape} for {number} data; it must return ({number},), a value "
                f"for each, or their sum. ({number}, 1) against ({number},) broadcasts to ({number}, {number}): "
                "compare the shapes inside it."
            )

    def _check_start(self, batch: PyTree) -> None:
        """Refuse a start at which the log-density or its gradient, on this batch, is not finite."""
        try:
            value, slope = _value_and_slope(self, self.initial, batch)
        except ValueError as error:
            if "verifier" not in str(error):
                raise
            raise InputError(
                "the log-density holds NumPy arrays that were used in another precision before, and JAX takes its "
                "old copies for them. Convert them where they are used, jnp.asarray(X, x.dtype), or pass them as data=."
            ) from error
        if not np.isfinite(value):
            raise InputError(
                f"the log-density is {value} at the starting point {format_point(self.initial)}. "
                "Pass initial=, a point where it is finite, and check for log(0) or overflow."
            )
        if not np.isfinite(slope).all():
            bad = int(np.flatnonzero(~np.isfinite(slope))[0])
            raise _NoGradientError(
                f"the gradient of the log-density is {slope[bad]} in coordinate {bad} ({self.names[bad]}) at the "
                f"starting point {format_point(self.initial)}. Pass another initial=, or guard the function "
                "(jnp.where on the *inputs* of log, sqrt or division)."
            )


def _with_jax_arrays(function: Callable | None) -> Callable | None:
    """A module with its NumPy arrays as JAX's, which programs take as arguments; any other function as it is."""
    if not isinstance(function, eqx.Module):
        return function
    return jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, function)


def _check_functions(
    log_density: Callable | None,
    log_likelihood: Callable | None,
    log_prior: Callable | None,
    data: PyTree,
) -> None:
    """Refuse all but one of the two forms, whole or in mini-batch form."""
    if (log_density is None) == (log_likelihood is None):
        raise InputError(
            "give either log_density, or log_likelihood with data (and log_prior): "
            f"got log_density={log_density!r}, log_likelihood={log_likelihood!r}."
        )
    if log_density is not None and (data is not None or log_prior is not None):
        raise InputError(
            "data and log_prior belong to the mini-batch form: pass log_likelihood instead of log_density."
        )
    if log_likelihood is not None and data is None:
        raise InputError(
            "log_likelihood needs data: a pytree of arrays whose first axes have one length N."
        )


def _checked_dim(dim: Any) -> int:
    if dim is None:
        raise InputError(
            "dim is missing: pass dim=d, the length of the vector x, or initial=, a point."
        )
    if not is_whole(dim) or dim < 1:
        raise InputError(f"dim is {dim!r}; it must be a whole number ≥ 1.")
    if dim > MOST_DIMENSIONS:
        raise InputError(
            f"dim is {dim}; it may be {MOST_DIMENSIONS:,} at most, as coordinates are numbered in 32 bits."
        )
    return int(dim)


def _checked_temperature(temperature: Any) -> float:
    if not is_number(temperature) or not temperature > 0 or not np.isfinite(temperature):
        raise InputError(
            f"temperature is {temperature!r}; it must be finite and > 0 (1 is the posterior)."
        )
    return float(temperature)


def _checked_dtype(dtype: DTypeLike | None) -> np.dtype:
    found = np.dtype(jnp.result_type(float) if dtype is None else dtype)
    if found not in (np.dtype("float32"), np.dtype("float64")):
        raise InputError(f"dtype is {found}; use float32 or float64.")
    return found


def _checked_start(start: Any, dim: int) -> Float[np.ndarray, " d"]:
    """The starting point, the origin where there is none."""
    point = np.zeros(dim) if start is None else np.asarray(start, np.float64)
    if point.shape != (dim,):
        raise InputError(f"initial has shape {point.shape}; it must be ({dim},), as dim={dim}.")
    if not np.isfinite(point).all():
        raise InputError(
            "initial holds NaN or infinity; give a point where the log-density is finite."
        )
    return point


def _checked_names(names: Any, dim: int) -> tuple[str, ...]:
    found = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise InputError(f"names is {names!r}; give a list of strings, one for each coordinate.")
    if len(found) != dim:
        raise InputError(f"{len(found)} names for dim={dim}: give one name for each coordinate.")
    if len(set(found)) < dim:
        twice = next(name for name, times in Counter(found).items() if times > 1)
        raise InputError(
            f"names holds {twice!r} twice; draws by name would lose a coordinate. Give each its own."
        )
    return found


def _checked_batch_size(batch_size: int | None, most: int) -> int | None:
    if batch_size is not None and not (is_whole(batch_size) and 1 <= batch_size <= most):
        raise InputError(
            f"batch_size is {batch_size!r}; it must be between 1 and the number of data, {most}."
        )
    return batch_size


def _checked_data(data: PyTree) -> PyTree:
    if isinstance(data, Stream):
        return data
    lengths = set()
    for path, leaf in jax.tree.leaves_with_path(data):
        name = "data" + jax.tree_util.keystr(path)
        for array in parts(leaf):
            if array.ndim == 0:
                raise InputError(
                    f"{name} is a single number; each array of data needs a first axis of length N."
                )
            require_finite(array, name)
        lengths.add(np.shape(leaf)[0])
    if len(lengths) > 1:
        raise InputError(
            f"the arrays of data have different lengths {sorted(lengths)} along their first axis."
        )
    if lengths == {0}:
        raise InputError("data is empty: N = 0.")
    return on_device(data)


@eqx.filter_jit
def _value_and_slope(
    target: Target, x: Float[Array, " d"], batch: PyTree
) -> tuple[Scalar, Float[Array, " d"]]:
    return jax.value_and_grad(target.log_density)(x, batch)
