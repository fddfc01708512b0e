r"""Supports of unknowns: maps from unconstrained coordinates, with their Jacobians.

A posterior over θ in a support becomes a posterior over x ∈ R^d by a bijection θ(x):
log p(x) = log p(θ(x)) + log |det ∂θ/∂x|. `gpvi.Target.from_supports` adds the second term, so that a log-density is
written in θ alone. Of a simplex the density is over all entries but the last, which the others determine.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from gpvi.errors import InputError, NotAvailableError, brief
from gpvi.specs import is_number, is_whole, require_count, resolve, spec

Shape = int | tuple[int, ...]


class Support(ABC):
    """A set of values, as the image of unconstrained arrays; subclass it and decorate with `gpvi.specs.spec`.

    Parameters
    ----------
    shape
        The shape of the unknown: a number of entries, or a tuple. () is a single number.

    Examples
    --------
    >>> isinstance(gpvi.supports.Positive(), gpvi.supports.Support)
    True
    """

    shape: Shape
    words: ClassVar[str]
    """What a value must be, for messages."""

    def __post_init__(self) -> None:
        sizes = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        if not all(is_whole(size) and size >= 1 for size in sizes):
            raise InputError(
                f"shape is {self.shape!r}; give a number of entries ≥ 1, a tuple of these, or () for a single number."
            )

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of a value θ."""
        return self.shape if isinstance(self.shape, tuple) else (self.shape,)

    @property
    def free_shape(self) -> tuple[int, ...]:
        """The shape of its unconstrained coordinates x."""
        return self.value_shape

    @abstractmethod
    def transform(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return θ(x).

        Parameters
        ----------
        x
            Unconstrained coordinates, of shape `free_shape`.

        Returns
        -------
        Array
            A value in the support, of shape `value_shape`.
        """

    @abstractmethod
    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        """Return log |det ∂θ/∂x| at x.

        Parameters
        ----------
        x
            Unconstrained coordinates, of shape `free_shape`.

        Returns
        -------
        Scalar
            The log-determinant, of all entries together.
        """

    @abstractmethod
    def inverse(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the x with θ(x) = value.

        Parameters
        ----------
        value
            A value in the support, of shape `value_shape`.

        Returns
        -------
        Array
            Unconstrained coordinates; not finite if the value is not in the support.
        """


@spec
class Real(Support):
    """Any real numbers.

    Parameters
    ----------
    shape
        The shape of the unknown.

    Examples
    --------
    >>> gpvi.supports.Real(8).transform(jnp.zeros(8)).shape
    (8,)
    """

    words: ClassVar[str] = "finite"
    shape: Shape = ()

    def transform(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        return jnp.zeros((), x.dtype)

    def inverse(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return value


@spec
class Positive(Support):
    """Numbers above 0, θ = exp(x).

    Parameters
    ----------
    shape
        The shape of the unknown.

    Examples
    --------
    >>> print(gpvi.supports.Positive().transform(jnp.zeros(())))
    1.0
    """

    words: ClassVar[str] = "> 0"
    shape: Shape = ()

    def transform(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(x)

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        return x.sum()

    def inverse(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(value)


@spec
class Above(Support):
    """Numbers above a bound, θ = lower + exp(x).

    Parameters
    ----------
    lower
        The bound.
    shape
        The shape of the unknown.

    Examples
    --------
    >>> print(gpvi.supports.Above(2.0).transform(jnp.zeros(())))
    3.0
    """

    words: ClassVar[str] = "above the bound"
    lower: float
    shape: Shape = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_finite(self.lower, "lower")

    def transform(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.lower + jnp.exp(x)

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        return x.sum()

    def inverse(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(value - self.lower)


@spec
class Below(Support):
    """Numbers below a bound, θ = upper − exp(x).

    Parameters
    ----------
    upper
        The bound.
    shape
        The shape of the unknown.

    Examples
    --------
    >>> print(gpvi.supports.Below(2.0).transform(jnp.zeros(())))
    1.0
    """

    words: ClassVar[str] = "below the bound"
    upper: float
    shape: Shape = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_finite(self.upper, "upper")

    def transform(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.upper - jnp.exp(x)

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        return x.sum()

    def inverse(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(self.upper - value)


@spec
class Interval(Support):
    """Numbers between two bounds, θ = lower + (upper − lower) / (1 + exp(−x)).

    Parameters
    ----------
    lower, upper
        The bounds.
    shape
        The shape of the unknown.

    Examples
    --------
    >>> print(gpvi.supports.Interval(-1.0, 3.0).transform(jnp.zeros(())))
    1.0
    """

    words: ClassVar[str] = "between the bounds"
    lower: float
    upper: float
    shape: Shape = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_finite(self.lower, "lower")
        _require_finite(self.upper, "upper")
        if self.lower >= self.upper:
            raise InputError(
                f"lower is {self.lower} and upper {self.upper}; lower must be less than upper."
            )

    def transform(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.lower + (self.upper - self.lower) * jax.nn.sigmoid(x)

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        width = math.log(self.upper - self.lower)
        return (width + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)).sum()

    def inverse(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(value - self.lower) - jnp.log(self.upper - value)


@spec
class Simplex(Support):
    """Vectors of positive entries that sum to 1, by breaking a stick: x = 0 is the centre.

    Entry k takes the share 1 / (1 + (K − k) exp(−x_k)) of what the entries before it have left.

    Parameters
    ----------
    size
        The number of entries K of each vector, 2 or more.
    shape
        The shape of an array of such vectors; () is a single one.

    Examples
    --------
    >>> print(gpvi.supports.Simplex(4).transform(jnp.zeros(3)))
    [0.25 0.25 0.25 0.25]
    """

    words: ClassVar[str] = "positive with sum 1"
    size: int
    shape: Shape = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.size) or self.size < 2:
            raise InputError(f"size is {self.size!r}; a simplex has a whole number ≥ 2 of entries.")

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of a value θ."""
        return (*super().value_shape, self.size)

    @property
    def free_shape(self) -> tuple[int, ...]:
        """The shape of its unconstrained coordinates x: one fewer for each vector."""
        return (*super().value_shape, self.size - 1)

    def transform(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        taken, left, last = self._shares(x)
        return jnp.exp(jnp.concatenate([left + taken, last], -1))

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        taken, left, _ = self._shares(x)
        return (left + taken + jax.nn.log_sigmoid(self._offset(x) - x)).sum()

    def inverse(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        rest = jnp.flip(jnp.cumsum(jnp.flip(value, -1), -1), -1)[..., 1:]
        adds_up = jnp.abs(value.sum(-1, keepdims=True) - 1) < 1e-3
        x = jnp.log(value[..., :-1]) - jnp.log(rest) + self._offset(value)
        return jnp.where(adds_up, x, jnp.nan)

    def _offset(self, x: Float[Array, "..."]) -> Float[Array, " k"]:
        """Return the log of how many entries follow each, in the dtype of x."""
        return jnp.log(jnp.arange(self.size - 1, 0, -1, dtype=x.dtype))

    def _shares(self, x: Float[Array, "..."]) -> tuple[Array, Array, Array]:
        """Return logs: of the share that each entry takes, of what is left before it, and of what is left at last."""
        y = x - self._offset(x)
        taken, kept = jax.nn.log_sigmoid(y), jax.nn.log_sigmoid(-y)
        after = jnp.cumsum(kept, -1)
        return taken, after - kept, after[..., -1:]


@spec
class Ordered(Support):
    """Vectors whose entries increase: the first is x_1, the step to entry k is exp(x_k).

    Parameters
    ----------
    size
        The number of entries of each vector.
    shape
        The shape of an array of such vectors; () is a single one.

    Examples
    --------
    >>> print(gpvi.supports.Ordered(3).transform(jnp.zeros(3)))
    [0. 1. 2.]
    """

    words: ClassVar[str] = "increasing"
    size: int
    shape: Shape = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("size", self.size, "It is the number of entries.")

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of a value θ."""
        return (*super().value_shape, self.size)

    def transform(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.cumsum(jnp.concatenate([x[..., :1], jnp.exp(x[..., 1:])], -1), -1)

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        return x[..., 1:].sum()

    def inverse(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.concatenate([value[..., :1], jnp.log(jnp.diff(value, axis=-1))], -1)


SHORTHANDS: dict[str, Callable[[], Support]] = {
    "real": Real,
    "positive": Positive,
    "unit": lambda: Interval(0.0, 1.0),
}
"""Supports of single numbers that can be given by name."""


@spec
class Supports:
    """Several unknowns with their supports, as one vector of unconstrained coordinates.

    It is the `model` of a target that `gpvi.Target.from_supports` makes.

    Parameters
    ----------
    unknowns
        The names of the unknowns.
    supports
        The support of each.

    Examples
    --------
    >>> both = gpvi.supports.Supports.of({"mean": "real", "share": gpvi.supports.Simplex(3)})
    >>> both.dim, both.names
    (3, ('mean', 'share[0]', 'share[1]'))
    """

    unknowns: tuple[str, ...]
    supports: tuple[Support, ...]

    @classmethod
    def of(cls, supports: Mapping[str, Support | str]) -> "Supports":
        """Make it of a mapping from names to supports.

        Parameters
        ----------
        supports
            For each unknown its support, or "real", "positive" or "unit" for a single number.

        Returns
        -------
        Supports
            All of them, in this order.

        Raises
        ------
        gpvi.errors.InputError
            If there is none, a name is no string, or something is no support.
        """
        if not isinstance(supports, Mapping) or not supports:
            raise InputError(
                f"supports is {brief(supports)}; give the support of each unknown by its name, such as "
                "{'mean': 'real', 'sd': 'positive'}."
            )
        for name in supports:
            if not isinstance(name, str) or not name:
                raise InputError(f"supports has the name {name!r}; names are strings.")
        resolved = [
            resolve(each, SHORTHANDS, f"support (of {name!r})", Support)
            for name, each in supports.items()
        ]
        return cls(tuple(supports), tuple(resolved))

    @property
    def dim(self) -> int:
        """The number of unconstrained coordinates."""
        return sum(math.prod(each.free_shape) for each in self.supports)

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each unconstrained coordinate."""
        return tuple(
            name + (f"[{','.join(map(str, index))}]" if index else "")
            for name, each in zip(self.unknowns, self.supports, strict=True)
            for index in np.ndindex(*each.free_shape)
        )

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Names of axes: none."""
        return {}

    @property
    def coords(self) -> dict[str, Sequence[Any]]:
        """Labels along axes: none."""
        return {}

    @property
    def observed(self) -> dict[str, np.ndarray]:
        """Observed sites: none."""
        return {}

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Constant data: none."""
        return {}

    def constrain(
        self, x: Float[Array, " d"], *, key: PRNGKeyArray | None = None
    ) -> dict[str, Array]:
        """Return the unknowns by name, in their supports.

        Parameters
        ----------
        x
            Unconstrained coordinates.
        key
            Not used: x determines the unknowns.

        Returns
        -------
        dict
            The value of each unknown.
        """
        each = zip(self.unknowns, self.supports, self._parts(x), strict=True)
        return {name: support.transform(part) for name, support, part in each}

    def log_det(self, x: Float[Array, " d"]) -> Scalar:
        """Return log |det ∂θ/∂x| of all unknowns together.

        Parameters
        ----------
        x
            Unconstrained coordinates.

        Returns
        -------
        Scalar
            The log-determinant.
        """
        each = zip(self.supports, self._parts(x), strict=True)
        return jnp.sum(jnp.stack([support.log_det(part) for support, part in each]))

    def unconstrain(self, values: Mapping[str, Any]) -> Float[np.ndarray, " d"]:
        """Return the coordinates of given values.

        Parameters
        ----------
        values
            Values of some unknowns by name; the coordinates of the others are 0.

        Returns
        -------
        np.ndarray
            Unconstrained coordinates, (d,).

        Raises
        ------
        gpvi.errors.InputError
            If a value has another shape, or lies outside of its support.
        """
        unknown = sorted(set(values) - set(self.unknowns))
        if unknown:
            raise InputError(
                f"initial has {unknown[0]!r}, which is no unknown; there are {', '.join(self.unknowns)}."
            )
        parts = []
        for name, support in zip(self.unknowns, self.supports, strict=True):
            if name not in values:
                parts.append(np.zeros(math.prod(support.free_shape)))
                continue
            value = np.asarray(values[name], np.float64)
            if value.shape != support.value_shape:
                raise InputError(
                    f"initial[{name!r}] has shape {value.shape}; it must be {support.value_shape}."
                )
            with jax.enable_x64(True):
                part = np.asarray(support.inverse(jnp.asarray(value)))
            if not np.isfinite(part).all():
                raise InputError(
                    f"initial[{name!r}] is {values[name]!r}, outside of {support}: it must be {support.words}."
                )
            parts.append(part.ravel())
        return np.concatenate(parts)

    def predict(self, x: Float[Array, " d"], *, key: PRNGKeyArray) -> dict[str, Array]:
        """Return nothing, since a log-density has no observed sites.

        Parameters
        ----------
        x
            Unconstrained coordinates.
        key
            A JAX key.

        Returns
        -------
        dict
            An empty one.
        """
        return {}

    def predictor(self, args: tuple, kwargs: Mapping[str, Any]) -> Callable[..., dict[str, Array]]:
        """Refuse: a log-density draws no data.

        Parameters
        ----------
        args, kwargs
            Arguments of a model.

        Returns
        -------
        Callable
            Never.

        Raises
        ------
        gpvi.errors.NotAvailableError
            Always.
        """
        raise NotAvailableError(
            "predict draws new data from the model of a target, and this one was made of a log-density. Compute from "
            "posterior.draws(n, key=…), or write the model in NumPyro."
        )

    @property
    def finite_in_double(self) -> None:
        """Nothing is known of float64."""
        return None

    def log_likelihood(self, x: Float[Array, " d"]) -> dict[str, Array]:
        """Return nothing, since a log-density has no observed sites.

        Parameters
        ----------
        x
            Unconstrained coordinates.

        Returns
        -------
        dict
            An empty one.
        """
        return {}

    def target_arguments(
        self,
        log_density: Callable[..., Any] | None,
        log_likelihood: Callable[..., Any] | None,
        log_prior: Callable[..., Any] | None,
        temperature: float | int,
    ) -> dict[str, Any]:
        """Return functions of x for those of the unknowns.

        The target divides log p by its temperature, but a Jacobian has none, and is multiplied by it here.

        Parameters
        ----------
        log_density, log_likelihood, log_prior
            Functions of a dictionary of the unknowns, as `gpvi.Target` takes them of x.
        temperature
            That of the target.

        Returns
        -------
        dict
            Arguments of `gpvi.Target`.
        """
        functions = {"log_density": log_density, "log_likelihood": log_likelihood}
        arguments = {
            name: (lambda x, *rest, given=given: given(self.constrain(x), *rest))
            for name, given in functions.items()
            if given is not None
        }
        jacobian = "log_prior" if log_density is None else "log_density"
        given = log_prior if log_density is None else log_density

        def with_jacobian(x: Float[Array, " d"]) -> Any:
            own = 0.0 if given is None else given(self.constrain(x))
            return own + temperature * self.log_det(x)

        return arguments | {jacobian: with_jacobian}

    def _parts(self, x: Float[Array, " d"]) -> list[Array]:
        """Cut a vector into the coordinates of each unknown."""
        shapes = [each.free_shape for each in self.supports]
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(jnp.split(x, ends), shapes, strict=True)]


def _require_finite(value: Any, name: str) -> None:
    if not is_number(value) or not math.isfinite(value):
        raise InputError(f"{name} is {value!r}; it must be a finite number.")
