r"""Targets: a posterior known up to a constant, as log p(x) and its score ∇ log p(x).

The mini-batch form replaces the log-likelihood of all N data by N/B times that of a batch of B data,
log p(x) = (N/B Σ_{i∈batch} log p(y_i | x) + log p(x)) / T. Its score is an unbiased estimate of the full one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, PyTree, Scalar

from gpvi._inputs import cast_in_range, device_dtype, format_point, on_device, precision
from gpvi.errors import InputError, NotAvailableError, warn
from gpvi.parallel.hosts import gathered
from gpvi.specs import as_key
from gpvi.supports import Support, Supports
from gpvi.targets import _validation as validation
from gpvi.targets._structure import Fault, paired_data, traced_output
from gpvi.targets.density import at_once, gradient_operations
from gpvi.targets.models.model import Model
from gpvi.targets.models.numpyro import NumPyroModel, check_options
from gpvi.targets.models.pymc import PyMCModel, default_dtype
from gpvi.targets.models.pytree import PytreeModel
from gpvi.targets.preflight import Preflight, preflight
from gpvi.targets.stream import Stream

SUBSAMPLED_ROWS = 10_000
"""The number of rows that represent streamed or distributed data in checks and in the search for a start."""
OFFSET = 0.1
"""If the default origin has no gradient, training starts about this far from it in each coordinate."""


class _NoGradientError(InputError):
    """The log-density is finite at the starting point, but its gradient is not."""


class _Constant(eqx.Module):
    """A distribution of starting points that always returns one point."""

    point: Float[Array, " d"]

    def __call__(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        return self.point


class Target(eqx.Module):
    """A posterior on R^d, known up to a constant.

    Give either its log-density, `Target(log_density, dim=d)`, or the mini-batch form,
    `Target(log_likelihood=…, log_prior=…, data=…, dim=d)`, which can be trained on batches of the data.

    Parameters
    ----------
    log_density
        The unnormalised log p at one point, (d,) → scalar, written in `jax.numpy`.
    dim
        The dimension d. It may be omitted if `initial` is given.
    log_likelihood
        (x, batch) → the log-likelihood of each datum of the batch, (B,), or their sum.
    log_prior
        x → scalar. A flat prior by default.
    data
        A pytree of arrays whose first axes have the same length N, or a `gpvi.Stream` of rows that stay on disk.
    temperature
        The log-density is divided by it: 1 gives the posterior, a value below 1 a cold posterior.
    initial
        Where training starts: a point where the log-density is finite, or a function key → point that draws such
        points, as a prior or the initialisation of a network does. By default the origin; if the log-density has no
        gradient there, a point near it.
    dtype
        float32 or float64. By default it follows JAX's x64 setting.
    names
        One name for each coordinate, or a function that returns them.
    batch_size
        The number of data in a training step if `gpvi.fit` is not given one. By default all data.
    model
        The model behind the vector x, which names, constrains and predicts: see `Target.from_numpyro`,
        `Target.from_pymc`, `Target.from_pytree` and `Target.from_supports`.

    Raises
    ------
    gpvi.errors.InputError
        If an argument cannot be used.

    Notes
    -----
    The functions are traced once for each target: after changing a variable they close over, make a new target. An
    `equinox.Module` stores its data as leaves and closes over nothing, so that targets made of modules share compiled
    programs.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> print(target.log_density(jnp.array([1.0, 1.0])))
    -1.0

    A regression in the mini-batch form:

    >>> X, y = np.ones((100, 3)), np.zeros(100)
    >>> target = gpvi.Target(
    ...     log_likelihood=lambda w, batch: -0.5 * (batch[1] - batch[0] @ w) ** 2,
    ...     log_prior=lambda w: -0.5 * w @ w,
    ...     data=(X, y),
    ...     dim=3,
    ...     batch_size=10,
    ... )
    >>> target.size
    100
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
    _default_initial: bool = eqx.field(static=True)
    """Whether no `initial` was given."""
    _draw_initial: Callable | None
    _log_density: Callable | None
    _log_likelihood: Callable | None
    _log_prior: Callable | None
    _identity: object = eqx.field(static=True)
    """Makes two targets of plain functions unequal, so that they do not share compiled programs."""

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
        validation.check_functions(log_density, log_likelihood, log_prior, data)
        self._default_initial = initial is None
        self._draw_initial = initial if callable(initial) else None
        start = validation.drawn_initial(initial) if callable(initial) else initial
        if dim is None and start is not None and np.ndim(start) == 1:
            dim = np.shape(start)[0]
        self.dim = validation.checked_dim(dim)
        self.temperature = validation.checked_temperature(temperature)
        self.dtype = validation.checked_dtype(dtype)
        point = validation.checked_initial(start, self.dim, self.dtype)
        if names is None or callable(names):
            self.naming = names
        else:
            self.naming = validation.checked_names(names, self.dim)
        with self.precision():
            self.initial = jnp.asarray(point)
            self.data = validation.checked_data(data)
            functions = tuple(map(_with_jax_arrays, (log_density, log_likelihood, log_prior)))
        closed = all(f is None or isinstance(f, eqx.Module) for f in functions)
        self._identity = None if closed else object()
        self._log_density, self._log_likelihood, self._log_prior = functions
        self.batch_size = validation.checked_batch_size(batch_size, self.size or 0)
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
        """The posterior of a NumPyro model, called as `model(*args, **kwargs)` with its data as `obs=`.

        Every continuous site becomes unconstrained coordinates; `posterior.draws` returns the sites by name, in their
        own supports. Discrete sites are summed out, and drawn again by `posterior.draws`. A plate with
        `subsample_size=B` makes a target in the mini-batch form with batches of B data.

        Parameters
        ----------
        model
            A function with `numpyro.sample` statements.
        *args, **kwargs
            The arguments of the model, data among them. They are constants of the compiled program.
        dtype
            float32 or float64, as in `Target`.
        temperature
            As in `Target`; 1 by default.

        Returns
        -------
        Target
            A target whose `model` names, constrains and predicts the sites.

        Raises
        ------
        gpvi.errors.InputError
            If a discrete site cannot be summed out, or no point with a finite log-density is found.
        gpvi.errors.NotAvailableError
            If NumPyro is not installed, or funsor for a model with discrete sites.

        Examples
        --------
        >>> import numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        ...     numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> target = gpvi.Target.from_numpyro(model, np.array([0.5, -1.0]))
        >>> target.dim, target.names
        (1, ('scale',))
        """
        check_options(model, {"dtype": dtype, "temperature": temperature})
        dtype = validation.checked_dtype(dtype)
        unconstrained = NumPyroModel(model, args, kwargs, dtype)
        if unconstrained.held:
            warn(
                f"the sites {', '.join(unconstrained.held)} are numpyro.param, which has no prior: they are held at "
                "their initial values, as in numpyro.infer.MCMC. Use numpyro.sample to infer them.",
                UserWarning,
            )
        if unconstrained.draws_keys:
            warn(
                "the model calls numpyro.prng_key(): what it draws is held, the same numbers at every evaluation. Use "
                "numpyro.sample for unknowns, and pass other numbers as arguments.",
                UserWarning,
            )
        return cls(
            **unconstrained.target_arguments(),
            temperature=1.0 if temperature is None else temperature,
            dtype=dtype,
            model=unconstrained,
        )

    @classmethod
    def from_pymc(
        cls, model: Any, *, dtype: DTypeLike | None = None, temperature: float | int = 1.0
    ) -> "Target":
        """The posterior of a PyMC model, with the data it observes.

        Every free variable becomes PyMC's own unconstrained coordinates; `posterior.draws` returns the variables and
        deterministics by name, in their own supports, and `to_arviz` has their dims and coords.

        Parameters
        ----------
        model
            A `pymc.Model`. Its data are constants of the compiled program: after `pm.set_data`, make a new target.
        dtype
            float32 or float64; by default that of PyMC, float64.
        temperature
            As in `Target`.

        Returns
        -------
        Target
            A target whose `model` names, constrains and predicts the variables.

        Raises
        ------
        gpvi.errors.InputError
            If a variable is discrete, PyTensor cannot compile the model for JAX, or no point with a finite log-density
            is found.
        gpvi.errors.NotAvailableError
            If PyMC is not installed.

        Examples
        --------
        >>> import pymc as pm
        >>> with pm.Model() as model:
        ...     scale = pm.HalfNormal("scale", 1.0)
        ...     observed = pm.Normal("y", 0.0, scale, observed=np.array([0.5, -1.0]))
        >>> target = gpvi.Target.from_pymc(model)
        >>> target.dim, target.names
        (1, ('scale',))
        """
        dtype = default_dtype() if dtype is None else validation.checked_dtype(dtype)
        unconstrained = PyMCModel(model, dtype)
        return cls(
            unconstrained.log_joint,
            unconstrained.dim,
            initial=unconstrained.initial,
            names=unconstrained.names,
            temperature=temperature,
            dtype=dtype,
            model=unconstrained,
        )

    @classmethod
    def from_pytree(cls, log_density: Callable | None, example: PyTree, **options: Any) -> "Target":
        """A posterior over a pytree of floats.

        Parameters
        ----------
        log_density
            tree → scalar; None in the mini-batch form.
        example
            A tree with the structure and shapes of the unknowns. Training starts at its values.
        **options
            Those of `Target`. `log_likelihood` and `log_prior` also take the tree as their first argument.

        Returns
        -------
        Target
            A target whose posterior returns draws with the structure of `example`.

        Raises
        ------
        gpvi.errors.InputError
            If a leaf of `example` is not a float, or there is none.

        Examples
        --------
        >>> def log_density(tree):
        ...     return -0.5 * (tree["w"] ** 2).sum() - 0.5 * tree["b"] ** 2
        >>> gpvi.Target.from_pytree(log_density, {"w": np.zeros(2), "b": 0.0}).names
        ('b', 'w[0]', 'w[1]')
        """
        tree = PytreeModel(example)
        functions = {"log_density": log_density} | {
            name: options.pop(name, None) for name in ("log_likelihood", "log_prior")
        }
        of_vector = {name: f if f is None else tree.of_vector(f) for name, f in functions.items()}
        start = {"initial": tree.initial, "names": tree.names}
        return cls(**of_vector, **(start | options), model=tree)

    @classmethod
    def from_supports(
        cls,
        log_density: Callable | None,
        supports: Mapping[str, Support | str],
        *,
        log_likelihood: Callable | None = None,
        log_prior: Callable | None = None,
        temperature: float | int = 1.0,
        initial: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "Target":
        """A posterior over named unknowns that are positive, bounded, on a simplex or ordered.

        Every unknown becomes unconstrained coordinates, and the Jacobian is added to log p: write the density of the
        unknowns themselves. `posterior.draws`, `summary` and `to_arviz` return them by name, in their supports.

        Parameters
        ----------
        log_density
            A dictionary of the unknowns → scalar; None in the mini-batch form.
        supports
            For each unknown a class of `gpvi.supports`, such as `Positive(8)`, or for a single number its name:
            "real", "positive" or "unit" (between 0 and 1).
        log_likelihood, log_prior
            Those of `Target`, of the dictionary instead of x.
        temperature
            As in `Target`; the density of the unknowns is raised to the power 1/T.
        initial
            Where training starts: values of some or all unknowns, in their supports.
        **options
            Those of `Target`.

        Returns
        -------
        Target
            A target whose `model` names and constrains the unknowns.

        Raises
        ------
        gpvi.errors.InputError
            If something is no support, or an initial value lies outside of its own.

        Examples
        --------
        >>> def log_density(p):
        ...     return -p["rate"] + 2 * jnp.log(p["rate"]) + jnp.log(p["mix"]).sum()
        >>> unknowns = {"rate": "positive", "mix": gpvi.supports.Simplex(3)}
        >>> target = gpvi.Target.from_supports(log_density, unknowns)
        >>> target.dim, target.names
        (3, ('rate', 'mix[0]', 'mix[1]'))
        """
        unknowns = Supports.of(supports)
        temperature = validation.checked_temperature(temperature)
        functions = unknowns.target_arguments(log_density, log_likelihood, log_prior, temperature)
        start = unknowns.unconstrain({} if initial is None else initial)
        fixed = {"initial": start, "names": unknowns.names, "temperature": temperature}
        return cls(**functions, **fixed, **options, model=unknowns)

    def __repr__(self) -> str:
        data = "" if self.size is None else f", {self.size:,} data"
        return f"<Target in {self.dim:,} dimensions, {self.dtype}{data}>"

    def debug(self, *, key: PRNGKeyArray | int = 0) -> Preflight:
        """Evaluate the log-density around the start and far away, and report what would make training fail.

        Streamed data are represented by a sample of their rows.

        Parameters
        ----------
        key
            Draws the points at which the log-density is evaluated: a JAX key, or a seed.

        Returns
        -------
        Preflight
            Print it for a table. `findings` lists what was found, and `ok` is True if there is no error.

        Examples
        --------
        >>> report = gpvi.Target(lambda x: -(x[0] ** 2), dim=2).debug()
        >>> report.ok
        False
        >>> print(report.findings[0].what)
        the gradient is zero everywhere in x[1]: log p ignores it, or has no gradient there
        """
        with self.precision():
            rows = self.subsample()
            return preflight(
                self.log_density if rows is None else partial(self.log_density, batch=rows),
                self.initial,
                names=self.names,
                key=as_key(key),
                unscaled=self._unscaled,
                log_likelihood=self._log_likelihood,
                data=self.data if rows is None else rows,
                finite_in_double=None if self.model is None else self.model.finite_in_double,
            )

    def precision(self) -> AbstractContextManager[None]:
        """A context in which JAX computes in this target's dtype.

        Returns
        -------
        contextlib.AbstractContextManager
            For a `with` statement.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -x @ x, dim=2, dtype="float64")
        >>> with target.precision():
        ...     print(target.score(target.initial).dtype)
        float64
        """
        return precision(self.dtype)

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each coordinate, made on every access: a network may have 10⁷ weights."""
        if self.naming is None:
            return tuple(f"x[{i}]" for i in range(self.dim))
        if callable(self.naming):
            return validation.checked_names(self.naming(), self.dim)
        return self.naming

    @property
    def size(self) -> int | None:
        """N, the number of data; None for a target made of a log-density."""
        if isinstance(self.data, Stream):
            return self.data.size
        leaves = jax.tree.leaves(self.data)
        return leaves[0].shape[0] if leaves else None

    @property
    def stream(self) -> Stream | None:
        """The data if they are streamed, else None."""
        return self.data if isinstance(self.data, Stream) else None

    def batch(self, indices: Int[Array | np.ndarray, " b"]) -> PyTree:
        """The data with these indices.

        Parameters
        ----------
        indices
            Row numbers. Rows of a stream are read from disk, so that their indices cannot be traced.

        Returns
        -------
        PyTree
            The data, with B rows.
        """
        if isinstance(self.data, Stream):
            return on_device(self.data.rows(np.asarray(indices)))
        return jax.tree.map(lambda leaf: leaf[indices], self.data)

    def subsample(self) -> PyTree:
        """Rows that represent all data if these are streamed, or distributed over other processes.

        Returns
        -------
        PyTree
            At most 10,000 rows from everywhere in the data; None if all data are in this process.
        """
        if isinstance(self.data, Stream):
            count = min(SUBSAMPLED_ROWS, self.data.batches(1))
            return on_device(self.data.sample(count))
        if self.size is None or all(a.is_fully_addressable for a in jax.tree.leaves(self.data)):
            return None
        rows = np.linspace(0, self.size - 1, min(SUBSAMPLED_ROWS, self.size)).astype(int)
        return jax.tree.map(lambda leaf: jnp.asarray(gathered(leaf[rows])), self.data)

    @property
    def draws_its_start(self) -> bool:
        """Whether `initial` is a distribution of starting points."""
        return self._draw_initial is not None

    def starting_points(self, n: int, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
        """Points from which n particles start.

        Parameters
        ----------
        n
            The number of points.
        key
            Draws them.

        Returns
        -------
        Array
            Draws from `initial` if it is a function, else draws from a standard normal around it, (n, d).
        """
        if self._draw_initial is None:
            return self.initial + jax.random.normal(key, (n, self.dim), self.dtype)
        return jax.vmap(self._draw_initial)(jax.random.split(key, n)).astype(self.dtype)

    def starting_at(self, point: Float[Array | np.ndarray, " d"]) -> "Target":
        """The same target with `point` as its only starting point. The data are shared.

        Parameters
        ----------
        point
            Where training starts, (d,).

        Returns
        -------
        Target
            A copy.
        """
        with self.precision():
            point = jnp.asarray(point, self.dtype)
        return eqx.tree_at(
            lambda target: (target.initial, target._draw_initial),
            self,
            (point, _Constant(point)),
            is_leaf=lambda part: part is None,
        )

    def log_density(self, x: Float[Array, " d"], batch: PyTree = None) -> Scalar:
        """The log-density at one point.

        Parameters
        ----------
        x
            The point, (d,).
        batch
            Data from `batch(indices)`; the log-density is estimated from them. By default all data are used.

        Returns
        -------
        Scalar
            log p(x), up to a constant.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> print(target.log_density(jnp.array([1.0, 1.0])))
        -1.0
        """
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
        """The log-density of all data at many points.

        A stream is read once, in blocks that are not kept.

        Parameters
        ----------
        x
            The points, (n, d).

        Returns
        -------
        Array
            log p at each of them, up to a constant, (n,).
        """
        stream, log_likelihood = self.data, self._log_likelihood
        if not isinstance(stream, Stream) or log_likelihood is None:
            return jax.lax.map(self.log_density, x, batch_size=at_once(self.dim))

        def block(first: Int[Array, ""], count: int) -> PyTree:
            form = jax.tree.map(
                lambda a: jax.ShapeDtypeStruct((count, *a.shape), device_dtype(a.dtype)),
                stream.row,
            )

            def read(first: Any) -> PyTree:
                rows = stream.rows(int(first) + np.arange(count))
                return jax.tree.map(lambda a, to: cast_in_range(a, np.dtype(to.dtype)), rows, form)

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
        blocks, rest = divmod(stream.size, count)
        total, _ = jax.lax.scan(
            lambda total, number: (total + terms(number * count, count, x), None),
            jnp.zeros(len(x), self.dtype),
            jnp.arange(blocks),
        )
        if rest:
            total = total + terms(jnp.asarray(blocks * count), rest, x)
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
        """An estimate of E log p(x) under x ~ N(mean, scale²) that draws a separate x for each datum.

        Separate draws lower the variance of the estimate (local reparametrisation).

        Parameters
        ----------
        mean, scale
            Of each coordinate, (d,).
        batch
            Data from `batch(indices)`; None for all data.
        key
            Draws the noise.

        Returns
        -------
        Scalar
            The estimate.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If the log-likelihood has no method `local(mean, scale, batch, key=key)`. Those of `gpvi.bnn` have one.
        """
        local = getattr(self._log_likelihood, "local", None)
        if local is None or self.size is None or (batch is None and self.stream is not None):
            raise NotAvailableError(
                "this target's log-likelihood cannot use a separate draw for each datum. Use MeanFieldVI(local=False), "
                "or a network of gpvi.bnn (with batch_size= if its data are streamed)."
            )
        batch = self.data if batch is None else batch
        likelihood_key, prior_key = jax.random.split(key)
        total = local(mean, scale, batch, key=likelihood_key).sum()
        total = total * (self.size / jax.tree.leaves(batch)[0].shape[0])
        if self._log_prior is not None:
            x = mean + scale * jax.random.normal(prior_key, mean.shape, mean.dtype)
            total = total + self._log_prior(x)
        return total / self.temperature

    def score(self, x: Float[Array, " d"], batch: PyTree = None) -> Float[Array, " d"]:
        """The gradient of the log-density at one point.

        Parameters
        ----------
        x
            The point, (d,).
        batch
            As in `log_density`.

        Returns
        -------
        Array
            ∇ log p(x), (d,).

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> print(target.score(jnp.array([1.0, 2.0])))
        [-1. -2.]
        """
        return jax.grad(self.log_density)(x, batch)

    def operations(self) -> float:
        """Count the operations of one evaluation of log p and its gradient on all data.

        Returns
        -------
        float
            The number of operations. It is counted at the first call only.
        """
        return self._operations

    @cached_property
    def _operations(self) -> float:
        return gradient_operations(self)

    def suggestion(self) -> Any | None:
        """How to train this target if its log-likelihood makes a suggestion, as that of a network does.

        Returns
        -------
        gpvi.methods.base.Suggestion or None
            A method, with a note for the user.
        """
        suggest = getattr(self._log_likelihood, "suggestion", None)
        return None if suggest is None else suggest(self.dim)

    @property
    def log_likelihood_terms(self) -> Callable | None:
        """x → the log-likelihood of all data: one value for each datum if the function returns these, else the sum.

        None for a log-density, and for streamed data, which have too many values to store at every draw.
        """
        log_likelihood, data = self._log_likelihood, self.data
        if log_likelihood is None or isinstance(data, Stream):
            return None
        return lambda x: log_likelihood(x, data)

    def check(self, batch_size: int | None = None) -> None:
        """Refuse a log-density that cannot be trained on, before anything long is compiled.

        Parameters
        ----------
        batch_size
            Evaluate the log-density on this many data, as training will. By default on all data, or on a sample if
            they are streamed.

        Raises
        ------
        gpvi.errors.InputError
            If the function cannot be traced, does not return one float, or is not finite at the starting point.

        Examples
        --------
        >>> gpvi.Target(lambda x: -x @ x, dim=2).check()
        >>> gpvi.Target(lambda x: jnp.log(x[0]), dim=2).check()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gpvi.errors.InputError: the log-density is -inf at the starting point [0. 0.]. Pass initial=, ...
        """
        output = traced_output(self._unscaled, self.dim, self.dtype)
        if isinstance(output, Fault):
            raise InputError(str(output)) from output.cause
        if self._log_likelihood is not None:
            fault = paired_data(self._log_likelihood, self._few_data(), self.dim, self.dtype)
            if fault is not None:
                raise InputError(str(fault))
        batch = self.subsample() if batch_size is None else self.batch(jnp.arange(batch_size))
        self._check_start(batch)

    def checked(self, batch_size: int | None = None) -> "Target":
        """Return this target after `check`.

        If no `initial` was given, and the log-density is finite at the origin but has no gradient there (as the length
        of x has none), return a copy that starts nearby.

        Parameters
        ----------
        batch_size
            As in `check`.

        Returns
        -------
        Target
            This target, or the copy.

        Raises
        ------
        gpvi.errors.InputError
            As `check` does.
        """
        try:
            self.check(batch_size)
        except _NoGradientError:
            if not self._default_initial or self.draws_its_start:
                raise
            near = OFFSET * jax.random.normal(jax.random.key(0), (self.dim,), self.dtype)
            moved, opposite = (eqx.tree_at(lambda t: t.initial, self, x) for x in (near, -near))
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

    def _unscaled(self, x: Any) -> Any:
        """What the given functions return at x (or at its stand-in of `_indexing`), before scaling by N/B and 1/T."""
        if self._log_likelihood is None:
            return self._log_density(x)  # pyright: ignore[reportOptionalCall]
        total = jnp.sum(self._log_likelihood(x, self._few_data()))
        return total if self._log_prior is None else total + self._log_prior(x)

    def _few_data(self) -> PyTree:
        """The data, or eight rows of a stream."""
        streamed = isinstance(self.data, Stream)
        return self.batch(np.arange(min(8, self.data.size))) if streamed else self.data

    def _check_start(self, batch: PyTree) -> None:
        """Refuse a starting point at which the log-density or its gradient, on this batch, is not finite."""
        try:
            value, gradient = _value_and_gradient(self, self.initial, batch)
        except ValueError as error:
            if "verifier" not in str(error):
                raise
            raise InputError(
                "the log-density closes over NumPy arrays that JAX has already converted in another precision. Convert "
                "them where they are used, jnp.asarray(X, x.dtype), or pass them as data=."
            ) from error
        if not np.isfinite(value):
            raise InputError(
                f"the log-density is {value} at the starting point {format_point(self.initial)}. "
                "Pass initial=, a point where it is finite, and check for log(0) or overflow."
            )
        if not np.isfinite(gradient).all():
            bad = int(np.flatnonzero(~np.isfinite(gradient))[0])
            raise _NoGradientError(
                f"the gradient of the log-density is {gradient[bad]} in coordinate {bad} ({self.names[bad]}) at the "
                f"starting point {format_point(self.initial)}. Pass another initial=, or guard the function "
                "(jnp.where on the *inputs* of log, sqrt or division)."
            )


def _with_jax_arrays(function: Callable | None) -> Callable | None:
    """A module with its NumPy arrays converted to JAX's, which programs take as arguments; other functions as is."""
    if not isinstance(function, eqx.Module):
        return function
    return jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, function)


@eqx.filter_jit
def _value_and_gradient(
    target: Target, x: Float[Array, " d"], batch: PyTree
) -> tuple[Scalar, Float[Array, " d"]]:
    return jax.value_and_grad(target.log_density)(x, batch)
