r"""PyMC models of a flat vector.

x is the concatenation of PyMC's own unconstrained values, one for each free variable, and its log-density is PyMC's,
with the Jacobians of its transforms, compiled for JAX by PyTensor.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi._inputs import precision
from gpvi.errors import InputError, NotAvailableError, ReliabilityWarning, require_extra, warn
from gpvi.targets.coordinate_names import entry_names
from gpvi.targets.models.model import ATTEMPTS, described, finite_point, first_line, split

Compiled = Callable[..., Sequence[Array]]
"""A graph of PyTensor as a function of JAX arrays."""


class PyMCModel:
    """A PyMC model with its data, which are constants of the compiled program.

    Attributes
    ----------
    dim, names, initial
        The dimension of x, the names of its coordinates, and a point where the log-density is finite.
    observed, constants
        The values of the observed variables, and of other `pm.Data`.
    dims, coords
        As PyMC has them.
    """

    def __init__(self, model: Any, dtype: np.dtype):
        _check_model(model)
        self._model, self._dtype = model, dtype
        start = _initial_values(model)
        self._values = [model.rvs_to_values[rv] for rv in model.free_RVs]
        self._shapes = tuple(np.shape(start[value.name]) for value in self._values)
        self.dim = sum(map(math.prod, self._shapes))
        self.names = tuple(
            name
            for rv, shape in zip(model.free_RVs, self._shapes, strict=True)
            for name in entry_names(rv.name, shape)
        )
        self.dims, self.coords = _axes(model)
        self.observed, self.constants = _data(model)
        jaxified = _jaxify()
        with precision(dtype), _quietly():
            self._log_joint = self._compiled(jaxified, "the log-density", _log_density(model))
            self._constrained = self._compiled(
                jaxified,
                "the variables and deterministics",
                lambda: model.replace_rvs_by_values(model.unobserved_RVs),
            )
            self._log_likelihood = self._compiled(
                jaxified, "the log-likelihood", lambda: model.logp(model.observed_RVs, sum=False)
            )
            self._predicted = _forward(model, jaxified)
            first = np.concatenate([np.ravel(start[value.name]) for value in self._values])
            self.initial = self._find_start(jnp.asarray(first, dtype), jaxified)

    def log_joint(self, x: Float[Array, " d"]) -> Scalar:
        """log p(θ(x), y) + log|det θ′(x)|."""
        with _quietly():
            return jnp.asarray(self._log_joint(*split(x, self._shapes))[0]).astype(x.dtype)

    def finite_in_double(self, points: Float[np.ndarray, "n d"]) -> np.ndarray | None:
        """Whether the log-density and its gradient are finite in float64, for each point."""
        double = np.dtype("float64")
        with precision(double):
            model = PyMCModel(self._model, double)
            evaluate = jax.jit(lambda xs: jax.lax.map(jax.value_and_grad(model.log_joint), xs))
            values, slopes = map(np.asarray, evaluate(jnp.asarray(points, double)))
        return np.isfinite(values) & np.isfinite(slopes).all(1)

    def constrain(
        self, x: Float[Array, " d"], *, key: PRNGKeyArray | None = None
    ) -> dict[str, Array]:
        """The values of the free variables, in their supports, and of the deterministics."""
        with _quietly():
            values = self._constrained(*split(x, self._shapes))
        return self._named(self._model.unobserved_RVs, values)

    def predict(self, x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]:
        """One draw of the observed variables given x; nothing if JAX cannot draw from one of them."""
        if not self.observed:
            return {}
        if isinstance(self._predicted, str):
            warn(
                f"posterior_predictive is left out: {self._predicted}. PyMC draws it: "
                "pm.sample_posterior_predictive(data, model=model, extend_inferencedata=True).",
                ReliabilityWarning,
            )
            return {}
        free = self.constrain(x)
        given = [free[rv.name] for rv in self._model.free_RVs]
        with _quietly():
            return self._named(self._model.observed_RVs, self._predicted(key, given))

    def log_likelihood(self, x: Float[Array, " d"]) -> dict[str, Array]:
        """log p(y_i | x) of each observation, by variable."""
        with _quietly():
            values = self._log_likelihood(*split(x, self._shapes))
        return self._named(self._model.observed_RVs, values)

    def predictor(self, args: tuple, kwargs: Mapping[str, Any]) -> Callable[..., dict[str, Array]]:
        """Refused: PyMC does this itself."""
        raise NotAvailableError(
            "predict calls a NumPyro model with new arguments. PyMC draws at new data itself: inside `with model:`, "
            "pm.set_data({…}), then pm.sample_posterior_predictive(posterior.to_arviz(key=…), predictions=True)."
        )

    def _named(self, variables: Sequence[Any], values: Sequence[Array]) -> dict[str, Array]:
        return {rv.name: jnp.asarray(value) for rv, value in zip(variables, values, strict=True)}

    def _compiled(
        self, jaxified: Callable[..., Compiled], what: str, graph: Callable[[], Sequence[Any]]
    ) -> Compiled:
        """The graph as a function of the unconstrained values, or an error that names what JAX cannot do."""
        try:
            outputs = list(graph())
            if not outputs:
                return lambda *values: ()
            function = jaxified(inputs=self._values, outputs=outputs)
            forms = [jax.ShapeDtypeStruct(shape, self._dtype) for shape in self._shapes]
            jax.eval_shape(function, *forms)
        except Exception as error:
            raise _refusal(what, error) from error
        return function

    def _find_start(
        self, first: Float[Array, " d"], jaxified: Callable[..., Compiled]
    ) -> np.ndarray:
        """PyMC's own start if log p and its gradient are finite there, else the first such point of random ones."""
        point = finite_point(self.log_joint, first)
        if point is not None:
            return point
        variables = [*self._model.basic_RVs, *self._model.potentials]
        terms = self._compiled(
            jaxified, "the log-density", lambda: self._model.logp(variables, sum=False)
        )
        sums = [float(jnp.sum(term)) for term in terms(*split(first, self._shapes))]
        bad = {
            each.name: value
            for each, value in zip(variables, sums, strict=True)
            if not np.isfinite(value)
        }
        raise InputError(
            f"no point with a finite log-density and gradient was found for the PyMC model in {ATTEMPTS} attempts; at "
            f"PyMC's initial point the variables {bad or 'are finite, their gradients are not'}. Look for observations "
            "that are NaN or outside the support of their distribution (model.debug() says more), or pass initval=."
        )


def default_dtype() -> np.dtype:
    """The precision of PyMC's own computations: float64, unless its user has set `floatX`."""
    require_pymc()
    from pytensor.configdefaults import config

    return np.dtype(config.floatX)


def is_model(value: Any) -> bool:
    """Whether a value is a PyMC model; PyMC is not imported to tell."""
    return any(
        kind.__name__ == "Model" and kind.__module__.split(".")[0] == "pymc"
        for kind in type(value).__mro__
    )


def require_pymc() -> None:
    """Raise `NotAvailableError` unless PyMC is installed."""
    require_extra("pymc", "pymc", "a target made of a PyMC model")


def _check_model(model: Any) -> None:
    """Refuse what is no PyMC model, or one without continuous unknowns."""
    require_pymc()
    if not is_model(model):
        raise InputError(
            f"model is {model!r:.80}; pass the model of PyMC itself: with pm.Model() as model: …, then "
            "Target.from_pymc(model)."
        )
    if not model.free_RVs:
        raise InputError(
            "the PyMC model has no free variables, so there is nothing to infer. Give its unknowns priors, such as "
            "pm.Normal(name, 0, 1), and pass only data as observed=."
        )
    discrete = [rv for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        listed = ", ".join(f"{rv.name!r} ({_kind(rv)})" for rv in discrete)
        raise InputError(
            f"the PyMC model has discrete variables, {listed}, and a density on R^d needs continuous ones. Sum them "
            "out: pm.Mixture, or pymc_extras.marginalize(model, names). If data are missing, leave their rows out."
        )


def _kind(rv: Any) -> str:
    return type(rv.owner.op).__name__.removesuffix("RV")


def _initial_values(model: Any) -> dict[str, np.ndarray]:
    try:
        return model.initial_point(random_seed=0)
    except Exception as error:
        raise InputError(
            f"PyMC cannot start the model: {described(error)}. Pass initval= to the variable "
            "that it names."
        ) from error


def _log_density(model: Any) -> Callable[[], Sequence[Any]]:
    def graph() -> Sequence[Any]:
        from pytensor.tensor.random.type import RandomType

        total = model.logp()
        if any(isinstance(leaf.type, RandomType) for leaf in _leaves(total)):
            raise InputError(
                "the PyMC model draws random numbers whenever its log-density is evaluated, as pm.Minibatch does: give "
                "it all data (gpvi trains on batches of NumPyro models with subsample_size)."
            )
        return [total]

    return graph


def _leaves(output: Any) -> Sequence[Any]:
    from pytensor.graph.traversal import graph_inputs

    return list(graph_inputs([output]))


def _axes(model: Any) -> tuple[dict[str, tuple[str, ...]], dict[str, Sequence[Any]]]:
    """The names of the axes of each variable that has any, and the labels along them."""
    dims: dict[str, tuple[str, ...]] = {
        name: tuple(axis or f"{name}_dim_{i}" for i, axis in enumerate(axes))
        for name, axes in model.named_vars_to_dims.items()
    }
    coords: dict[str, Sequence[Any]] = {
        axis: list(labels) for axis, labels in model.coords.items() if labels is not None
    }
    return dims, coords


def _data(model: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    from pymc.backends.arviz import find_constants, find_observations

    observed = {name: np.asarray(value) for name, value in find_observations(model).items()}
    constants = {name: np.asarray(value) for name, value in find_constants(model).items()}
    return observed, constants


def _forward(
    model: Any, jaxified: Callable[..., Compiled]
) -> Callable[[PRNGKeyArray, Sequence[Array]], Sequence[Array]] | str:
    """The function that draws the observed variables from a key and the free ones, or why there is none."""
    from pytensor.graph.replace import clone_replace
    from pytensor.tensor.random.type import RandomType

    try:
        free = [rv.type(name=rv.name) for rv in model.free_RVs]
        drawn = clone_replace(
            list(model.observed_RVs), dict(zip(model.free_RVs, free, strict=True))
        )
        generators = [
            leaf
            for leaf in dict.fromkeys(leaf for each in drawn for leaf in _leaves(each))
            if isinstance(leaf.type, RandomType)
        ]
        own = [leaf.type() for leaf in generators]
        outputs = clone_replace(drawn, dict(zip(generators, own, strict=True)))
        function = jaxified(inputs=[*free, *own], outputs=outputs)

        def draw(key: PRNGKeyArray, values: Sequence[Array]) -> Sequence[Array]:
            keys = jax.random.key_data(jax.random.split(key, len(own)))
            return function(*values, *({"jax_state": each} for each in keys))

        start = model.rvs_to_values
        forms = [jax.ShapeDtypeStruct(_shape(rv), start[rv].dtype) for rv in model.free_RVs]
        jax.eval_shape(draw, jax.random.key(0), forms)
    except Exception as error:
        return first_line(error)
    return draw


def _shape(rv: Any) -> tuple[int, ...]:
    return tuple(int(length) for length in rv.shape.eval())


def _refusal(what: str, error: Exception) -> InputError:
    """The error of a graph that PyTensor cannot compile for JAX, or that JAX cannot trace."""
    if isinstance(error, InputError):
        return error
    return InputError(
        f"{what} of the PyMC model cannot be compiled for JAX: {described(error)}. Write that "
        "part with operations of pytensor.tensor that JAX knows, or give the operation a JAX conversion "
        "(pytensor.link.jax.dispatch.jax_funcify)."
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """A context without the warnings that a graph of float64 gives when it is traced in float32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        warnings.filterwarnings("ignore", "Skipping .* Op", UserWarning)
        yield


def _jaxify() -> Callable[..., Compiled]:
    """PyMC's compiler of graphs to JAX functions.

    Its import sets JAX's x64 mode for the whole process, and asks XLA for a hundred CPU devices. Both are undone.
    """
    flags = os.environ.get("XLA_FLAGS")
    with ThreadPoolExecutor(
        1
    ) as other:  # a thread that no `with jax.enable_x64` of the caller reaches
        x64 = other.submit(lambda: jnp.result_type(float) == np.float64).result()
    import pymc.sampling.jax as compiler

    jax.config.update("jax_enable_x64", x64)
    if flags is None:
        os.environ.pop("XLA_FLAGS", None)
    else:
        os.environ["XLA_FLAGS"] = flags
    compile_graph: Any = compiler.get_jaxified_graph
    return compile_graph
