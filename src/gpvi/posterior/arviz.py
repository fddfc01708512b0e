"""Export of draws: by name and in their supports, and as the groups that ArviZ reads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi.diagnostics.importance import smoothed_log_weights
from gpvi.errors import InputError, NotAvailableError
from gpvi.posterior.approximation import ExportedDraws
from gpvi.posterior.naming import named, over_draws
from gpvi.targets.coordinate_names import path_name
from gpvi.targets.target import Target

LARGEST = 2**28
"""The most numbers that a group of one value for each draw and datum may hold."""

AXES = {"chain", "draw"}
"""The axes of every variable in ArviZ."""

Groups = dict[str, dict[str, np.ndarray]]


def to_arviz(
    target: Target,
    drawn: ExportedDraws,
    *,
    key: PRNGKeyArray,
    predictive: bool,
    log_likelihood: bool,
    attributes: Mapping[str, str | float],
) -> Any:
    """Return the draws as ArviZ' InferenceData, or as an xarray DataTree for ArviZ ≥ 1."""
    x, chains = drawn.x, drawn.chains
    state_key, key = jax.random.split(key)
    groups: Groups = {"posterior": flat(named(target, x, key=state_key))}
    groups["sample_stats"], k_hat = _statistics(drawn)
    model = target.model
    _check_names(groups["posterior"], {} if model is None else model.dims)
    if model is not None and predictive:
        predictions = over_draws(model.predict, x, key=jax.random.split(key, len(x)))
        groups["posterior_predictive"] = flat(predictions)
    if log_likelihood:
        groups["log_likelihood"] = flat(_pointwise(target, x))
    by_chain = {
        group: {
            name: values.reshape(-1, chains, *values.shape[1:]).swapaxes(0, 1)
            for name, values in variables.items()
        }
        for group, variables in groups.items()
        if variables
    }
    attributes = dict(attributes) | ({} if k_hat is None else {"k_hat": k_hat})
    if model is None:
        return _assembled(by_chain, {}, {}, {}, attributes)
    given = {"observed_data": dict(model.observed), "constant_data": dict(model.constants)}
    return _assembled(by_chain, given, model.dims, model.coords, attributes)


def predicted(
    target: Target,
    x: Float[Array, "n d"],
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    key: PRNGKeyArray,
) -> dict[str, Array]:
    """Return draws from the target's model at other arguments, one for each draw of its unknowns."""
    if target.model is None:
        raise NotAvailableError(
            "predict draws new data from the model of a target, and this one was made of a log-density: use "
            "gpvi.Target.from_numpyro(model, …)."
        )
    predictor = target.model.predictor(args, kwargs)
    return over_draws(predictor, x, key=jax.random.split(key, len(x)))


def check(target: Target, draws: int, *, predictive: bool, log_likelihood: bool) -> None:
    """Raise an error, before anything is drawn, if ArviZ is not installed or a group would be too large."""
    try:
        import arviz  # noqa: F401
    except ImportError as error:
        raise NotAvailableError(
            "ArviZ is not installed: pip install 'gpvi[arviz]'. posterior.draws(n, key=…) gives named draws without it."
        ) from error
    if target.model is not None and target.model.observed:
        data = sum(np.size(values) for values in target.model.observed.values())
    else:
        data = 0 if _terms(target) is None else target.size or 0
    for wanted, option in ((predictive, "predictive"), (log_likelihood, "log_likelihood")):
        if wanted and draws * data > LARGEST:
            raise InputError(
                f"{draws} draws of one value for each of {data} data are {draws * data:,} numbers. "
                f"Ask for fewer draws, or pass {option}=False."
            )


def _check_names(variables: Iterable[str], dims: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse variables and axes with the names of ArviZ' own axes."""
    taken = AXES.intersection(variables).union(*(AXES.intersection(axes) for axes in dims.values()))
    if taken:
        raise InputError(
            f"{min(taken)!r} is the name of an unknown or of a plate, and of an axis of every variable in ArviZ: "
            "rename yours. posterior.draws(n, key=…) has it under its own name."
        )


def _statistics(drawn: ExportedDraws) -> tuple[dict[str, np.ndarray], float | None]:
    """Return log p and divergences, and for draws with a density log q, the smoothed weights of p/q and their k̂."""
    statistics = {"lp": np.asarray(drawn.log_p)}
    if drawn.divergent is not None:
        statistics["diverging"] = np.asarray(drawn.divergent)
    if drawn.log_q is None:
        return statistics, None
    log_weights, k_hat = smoothed_log_weights(drawn.log_p - drawn.log_q)
    statistics |= {"lp_q": np.asarray(drawn.log_q), "log_weight": np.asarray(log_weights)}
    return statistics, float(k_hat)


def _pointwise(target: Target, x: Float[Array, "n d"]) -> dict[str, Array]:
    """Return the log-likelihood of every datum at every draw, if the target knows it per datum."""
    if target.model is not None and target.model.observed:
        return over_draws(target.model.log_likelihood, x)
    terms = _terms(target)
    return {} if terms is None else {"data": over_draws(terms, x)}


def _terms(target: Target) -> Callable[..., Array] | None:
    """Return the function from x to one log-likelihood per datum, if the target was given one."""
    terms = target.log_likelihood_terms
    with target.precision():
        each = terms is not None and jax.eval_shape(terms, target.initial).shape == (target.size,)
    return terms if each else None


def flat(tree: PyTree) -> dict[str, np.ndarray]:
    """Return the leaves of a tree as arrays, named by their paths; a dictionary keeps its order."""
    branches: list[tuple[tuple[Any, ...], PyTree]] = [((), tree)]
    if isinstance(tree, dict):
        branches = [((jax.tree_util.DictKey(key),), branch) for key, branch in tree.items()]
    return {
        path_name((*first, *path)): np.asarray(leaf)
        for first, branch in branches
        for path, leaf in jax.tree.leaves_with_path(branch)
    }


def _assembled(
    sampled: Groups,
    given: Groups,
    dims: Mapping[str, tuple[str, ...]],
    coords: Mapping[str, Sequence[Any]],
    attributes: Mapping[str, str | float],
) -> Any:
    """Put groups with chain and draw axes, and those without, into the container that ArviZ reads."""
    import arviz
    import xarray

    def dataset(variables: dict[str, np.ndarray], leading: tuple[str, ...]) -> xarray.Dataset:
        arrays = {}
        for name, values in variables.items():
            shape = values.shape[len(leading) :]
            own = dims.get(name, ())[: len(shape)]
            axes = own if len(own) == len(shape) else [f"{name}_dim_{i}" for i in range(len(shape))]
            arrays[name] = ((*leading, *axes), values)
        sizes: dict[str, int] = {}
        for axes, values in arrays.values():
            sizes |= dict(zip(axes, values.shape, strict=True))
        coordinates = {axis: coords.get(axis, np.arange(size)) for axis, size in sizes.items()}
        return xarray.Dataset(arrays, coords=coordinates, attrs=dict(attributes))

    groups: dict[str, Any] = {
        group: dataset(variables, ("chain", "draw")) for group, variables in sampled.items()
    }
    groups |= {group: dataset(variables, ()) for group, variables in given.items() if variables}
    if int(arviz.__version__.split(".")[0]) >= 1:
        return xarray.DataTree.from_dict(groups)
    return arviz.InferenceData(**groups)
