"""The predictive distribution of y given x: an average over networks drawn from a posterior.

`_mixture` has the formulas, `_draws` the networks. Class probabilities are temperature-scaled after averaging, if the
sharpness is not 1 (see `temperature_scaling`). Networks are drawn a block at a time and rows are computed some at a
time: memory grows with neither, beyond what is returned.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi._html import table
from gpvi._inputs import cast_in_range, precision
from gpvi.bnn.likelihoods import Likelihood, as_likelihood
from gpvi.bnn.model import checked_inputs, inputs_of, require_network, require_same_rows
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction import _draws, _mixture, _plots, _saving
from gpvi.bnn.prediction._fingerprints import Fingerprint, InputForm
from gpvi.bnn.prediction._mixture import Mixture
from gpvi.bnn.prediction.prediction import Prediction, with_sharpness
from gpvi.errors import InputError, NotAvailableError, require_extra
from gpvi.posterior import saving
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.saving import understood
from gpvi.specs import as_key, require_between, require_positive


class Predictive:
    """The predictive distribution of a posterior over the weights of a network.

    Methods average over `draws` networks. From a generator these are new ones (1,000 by default). Of particles and
    chains all are used by default, and a random subset if `draws` is smaller.

    Parameters
    ----------
    posterior
        What `gpvi.fit` returned for a `gpvi.bnn.target`, or `gpvi.load` read. Several posteriors, fitted by one method
        with the same options, predict as an equally weighted mixture.
    network, likelihood
        Those of the target.
    sharpness
        Temperature scaling of class probabilities (Guo et al. 2017): the inverse temperature, see
        `gpvi.bnn.temperature_scaled`. It does not apply to `sample` and `outputs`, which are of single networks.

    Attributes
    ----------
    members
        The posteriors.
    posterior
        The first of them.
    network, likelihood, sharpness
        As given.

    Raises
    ------
    gpvi.errors.InputError
        If the posteriors have different forms, or fewer coordinates than the network has weights.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> network = gpvi.bnn.mlp((1, 4, 1), "tanh")
    >>> target = gpvi.bnn.target(network, "gaussian", "fan-in", X, X[:, 0])
    >>> posterior = gpvi.fit(target, gpvi.SVGD(particles=8), key=key, steps=50, progress=False)
    >>> predictive = gpvi.bnn.Predictive(posterior, network, "gaussian")
    >>> predictive.predict(X, key=key).mean.shape
    (20, 1)
    """

    def __init__(
        self,
        posterior: Posterior | Sequence[Posterior],
        network: Network,
        likelihood: Likelihood | str,
        *,
        sharpness: float = 1.0,
    ):
        self.members = (posterior,) if isinstance(posterior, Posterior) else tuple(posterior)
        if not self.members:
            raise InputError("there is no posterior; give one or more.")
        self.posterior = self.members[0]
        self.network = network
        self.likelihood = as_likelihood(likelihood)
        require_positive("sharpness", sharpness, "1 leaves probabilities as they are.")
        self.sharpness = float(sharpness)
        trained_on = None if self.posterior.target is None else inputs_of(self.posterior.target)
        self._inputs = None if trained_on is None else InputForm.of(trained_on)
        forms = {jax.tree.structure((each.model, each.affine)) for each in self.members}
        if len(forms) > 1 or len({each.dtype for each in self.members}) > 1:
            raise InputError(
                f"the {len(self.members)} posteriors are of {len(forms)} different forms; give posteriors of one "
                "network, fitted by one method with the same options."
            )
        if self.posterior.dim < network.size:
            raise InputError(
                f"the posterior has {self.posterior.dim} coordinates, fewer than the {network.size} weights of the "
                "network."
            )

    def __repr__(self) -> str:
        members = f"{len(self.members)} posteriors" if len(self.members) > 1 else "a posterior"
        method, likelihood = type(self.posterior.method).__name__, type(self.likelihood).__name__
        weights = f"{self.network.size:,} weights"
        return f"<Predictive of {members} by {method}, {weights}, {likelihood} likelihood>"

    def _repr_html_(self) -> str:
        steps = sum(each.training.steps for each in self.members)
        networks = self.available_draws
        rows = [
            ("method", str(self.posterior.method)),
            ("members", f"{len(self.members)}, {steps:,} steps together"),
            ("weights", f"{self.network.size:,}"),
            ("networks", "any number" if networks is None else f"{networks:,}"),
            ("likelihood", str(self.likelihood)),
            ("sharpness", f"{self.sharpness:.3g}"),
        ]
        return table(rows, left=(0, 1), caption="Predictive distribution")

    @property
    def available_draws(self) -> int | None:
        """The number of networks that particles or chains hold; None if new ones can be drawn."""
        return _draws.available_draws(self.members)

    def predict(self, X: Any, *, key: PRNGKeyArray | int, draws: int | None = None) -> Prediction:
        """Predict mean and variance, with its two parts; for classes also entropy and mutual information.

        Parameters
        ----------
        X
            Inputs, (b, …).
        key
            A JAX key or a seed, by which networks are drawn.
        draws
            The number of networks.

        Returns
        -------
        Prediction
            The moments of y for each row.

        Raises
        ------
        gpvi.errors.InputError
            If the network does not take such inputs.
        gpvi.errors.NotAvailableError
            If more networks are asked for than there are particles.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> predictive = gpvi.bnn.fit(
        ...     gpvi.bnn.mlp((1, 4, 1), "tanh"),
        ...     "gaussian",
        ...     X,
        ...     X,
        ...     key=key,
        ...     method="svgd",
        ...     steps=50,
        ...     progress=False,
        ... )
        >>> found = predictive.predict(X, key=key)
        >>> bool((found.variance == found.aleatoric + found.epistemic).all())
        True
        """
        plain = self._by_rows(Mixture.predict, X, draws=draws, key=key)
        if not self._scales_classes:
            return plain
        with precision(self.posterior.dtype):
            return with_sharpness(plain, self.likelihood, self.sharpness)

    def log_prob(
        self, X: Any, y: Any, *, key: PRNGKeyArray | int, draws: int | None = None
    ) -> Float[Array, " b"]:
        """Return log p(y | x, data) = log (1/n) Σ_i p(y | x, w_i) of each row.

        Parameters
        ----------
        X, y
            Inputs, (b, …), and outcomes with b rows.
        key
            A JAX key or a seed, by which networks are drawn.
        draws
            The number of networks.

        Returns
        -------
        Array
            The log-densities, (b,). Their negative mean is the test NLL.

        Raises
        ------
        gpvi.errors.InputError
            If X and y have different lengths, or do not suit network and likelihood.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> predictive = gpvi.bnn.fit(
        ...     gpvi.bnn.mlp((1, 4, 1), "tanh"),
        ...     "gaussian",
        ...     X,
        ...     X,
        ...     key=key,
        ...     method="svgd",
        ...     steps=50,
        ...     progress=False,
        ... )
        >>> predictive.log_prob(X, X, key=key).shape
        (20,)
        """
        inputs = checked_inputs(X, self.network)
        values = self.likelihood.prepare(y, self.network.outputs(inputs))
        require_same_rows(inputs, values)
        if not self._scales_classes:
            return self._by_rows(Mixture.log_prob, inputs, y=values, draws=draws, key=key)
        logs, labels = self.log_probabilities(inputs, key=key, draws=draws), values.astype(int)
        return jnp.take_along_axis(logs, labels.reshape(-1, 1), 1)[:, 0]

    def log_probabilities(
        self, X: Any, *, key: PRNGKeyArray | int, draws: int | None = None
    ) -> Float[Array, "b c"]:
        """Return log p(c | x, data) of every class, also where the probability underflows to 0.

        Parameters
        ----------
        X
            Inputs, (b, …).
        key
            A JAX key or a seed, by which networks are drawn.
        draws
            The number of networks.

        Returns
        -------
        Array
            The log-probabilities, (b, C).

        Raises
        ------
        gpvi.errors.NotAvailableError
            If y is not one class label for each row.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> predictive = gpvi.bnn.fit(
        ...     gpvi.bnn.mlp((1, 4, 2)),
        ...     "categorical",
        ...     X,
        ...     X[:, 0] > 0,
        ...     key=key,
        ...     method="svgd",
        ...     steps=50,
        ...     progress=False,
        ... )
        >>> logs = predictive.log_probabilities(X, key=key)
        >>> logs.shape, bool(jnp.allclose(jnp.exp(logs).sum(1), 1, atol=1e-5))
        ((20, 2), True)
        """
        inputs = checked_inputs(X, self.network)
        outputs = self.network.outputs(inputs)
        classes = self.likelihood.classes(outputs)
        if classes is None:
            raise NotAvailableError(
                f"{self.likelihood} with {outputs} outputs is no distribution over classes: use log_prob(X, y), and a "
                "sharpness of 1."
            )
        logs = self._by_rows(Mixture.class_log_probs, inputs, draws=draws, key=key, classes=classes)
        with precision(self.posterior.dtype):
            return jax.nn.log_softmax(self.sharpness * logs, 1) if self._scales_classes else logs

    def quantiles(
        self,
        X: Any,
        levels: Sequence[float] | float,
        *,
        key: PRNGKeyArray | int,
        draws: int | None = None,
    ) -> Float[Array, "q b m"]:
        """Return quantiles of y, observation noise included.

        Parameters
        ----------
        X
            Inputs, (b, …).
        levels
            One or more probabilities.
        key
            A JAX key or a seed, by which networks are drawn.
        draws
            The number of networks.

        Returns
        -------
        Array
            The quantiles, (levels, b, m). (The estimators' `predict_quantiles` has the levels on the last axis.)

        Raises
        ------
        gpvi.errors.InputError
            If a level is not between 0 and 1.
        gpvi.errors.NotAvailableError
            If y is a class, or the likelihood has no `cdf`.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> predictive = gpvi.bnn.fit(
        ...     gpvi.bnn.mlp((1, 4, 1), "tanh"),
        ...     "gaussian",
        ...     X,
        ...     X,
        ...     key=key,
        ...     method="svgd",
        ...     steps=50,
        ...     progress=False,
        ... )
        >>> predictive.quantiles(X, [0.1, 0.9], key=key).shape
        (2, 20, 1)
        """
        at = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        if at.ndim != 1 or not ((at > 0) & (at < 1)).all():
            raise InputError(f"levels are {levels!r}; they must lie between 0 and 1.")
        if self.likelihood.classifies:
            raise NotAvailableError(
                f"{type(self.likelihood).__name__} is over classes, which have no order, so there are no quantiles or "
                "intervals. Use the probabilities, Predictive.predict(…).mean."
            )
        return self._by_rows(Mixture.quantiles, X, draws=draws, key=key, axis=1, levels=at)

    def interval(
        self, X: Any, level: float = 0.9, *, key: PRNGKeyArray | int, draws: int | None = None
    ) -> tuple[Float[Array, "b m"], Float[Array, "b m"]]:
        """Return the central interval that contains y with probability `level`.

        Parameters
        ----------
        X
            Inputs, (b, …).
        level
            The probability of the interval.
        key
            A JAX key or a seed, by which networks are drawn.
        draws
            The number of networks.

        Returns
        -------
        tuple of Array
            The lower and upper ends, (b, m) each.

        Raises
        ------
        gpvi.errors.InputError
            If the level is not between 0 and 1.
        gpvi.errors.NotAvailableError
            If y is a class, or the likelihood has no `cdf`.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> predictive = gpvi.bnn.fit(
        ...     gpvi.bnn.mlp((1, 4, 1), "tanh"),
        ...     "gaussian",
        ...     X,
        ...     X,
        ...     key=key,
        ...     method="svgd",
        ...     steps=50,
        ...     progress=False,
        ... )
        >>> low, high = predictive.interval(X, 0.8, key=key)
        >>> bool((low < high).all())
        True
        """
        require_between("level", level, 0, 1)
        lower, upper = self.quantiles(X, [(1 - level) / 2, (1 + level) / 2], key=key, draws=draws)
        return lower, upper

    def sample(self, X: Any, n: int | None = None, *, key: PRNGKeyArray | int) -> Array:
        """Draw y from each of n networks.

        Parameters
        ----------
        X
            Inputs, (b, …).
        n
            The number of networks.
        key
            A JAX key or a seed, by which networks and noise are drawn.

        Returns
        -------
        Array
            (n, b, m); labels, (n, b), for `Categorical`.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If more networks are asked for than there are particles, or the likelihood has no `sample`.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> predictive = gpvi.bnn.fit(
        ...     gpvi.bnn.mlp((1, 4, 1), "tanh"),
        ...     "gaussian",
        ...     X,
        ...     X,
        ...     key=key,
        ...     method="svgd",
        ...     steps=50,
        ...     progress=False,
        ... )
        >>> predictive.sample(X, 5, key=key).shape
        (5, 20, 1)
        """
        return self._all_rows(Mixture.sample, X, n, key, with_noise=True)

    def outputs(
        self, X: Any, n: int | None = None, *, key: PRNGKeyArray | int
    ) -> Float[Array, "n b o"]:
        """Return the outputs of each of n networks, without noise.

        Parameters
        ----------
        X
            Inputs, (b, …).
        n
            The number of networks.
        key
            A JAX key or a seed, by which networks are drawn.

        Returns
        -------
        Array
            The outputs, (n, b, o).

        Raises
        ------
        gpvi.errors.NotAvailableError
            If more networks are asked for than there are particles.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> predictive = gpvi.bnn.fit(
        ...     gpvi.bnn.mlp((1, 4, 1), "tanh"),
        ...     "gaussian",
        ...     X,
        ...     X,
        ...     key=key,
        ...     method="svgd",
        ...     steps=50,
        ...     progress=False,
        ... )
        >>> predictive.outputs(X, 5, key=key).shape
        (5, 20, 1)
        """
        return self._all_rows(Mixture.outputs, X, n, key, with_noise=False)

    def plot(
        self,
        X: Any,
        y: Any = None,
        *,
        level: float = 0.9,
        key: PRNGKeyArray | int = 0,
        draws: int | None = None,
        ax: Any = None,
    ) -> Any:
        """Draw the prediction over a single input: mean and interval of y, or the probabilities of the classes.

        Parameters
        ----------
        X
            Inputs with one column, such as those of the training; the curve goes a little beyond them.
        y
            Their outputs, drawn as points.
        level
            The probability with which the interval holds y, noise included.
        key
            A JAX key or a seed, by which networks are drawn; seed 0 by default.
        draws
            The number of networks.
        ax
            Matplotlib axes to draw on; new ones by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        gpvi.errors.InputError
            If the inputs have more than one column.
        gpvi.errors.NotAvailableError
            If Matplotlib is not installed.

        Examples
        --------
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> network = gpvi.bnn.mlp((1, 4, 1), "tanh")
        >>> predictive = gpvi.bnn.fit(
        ...     network, "gaussian", X, X, key=key, method="svgd", steps=50, progress=False
        ... )
        >>> predictive.plot(X, X).get_xlabel()
        'x'
        """
        require_extra("plots", "matplotlib", "a plot")
        inputs = np.asarray(X, np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != 1 or not len(inputs):
            raise InputError(
                f"X has shape {inputs.shape}; a plot is over one input, (b, 1). With more of them, plot "
                "predict(X).mean over the one you choose, the others held fixed."
            )
        key, grid = as_key(key), _plots.grid(inputs[:, 0])
        mean = np.asarray(self.predict(grid, key=key, draws=draws).mean)
        if self.likelihood.classifies:
            panel = _plots.plot_classes(grid, mean, ax)
        else:
            low, high = (
                np.asarray(each) for each in self.interval(grid, level, key=key, draws=draws)
            )
            panel = _plots.plot_band(grid, mean, low, high, level, ax)
        if y is not None:
            outputs = np.asarray(y, np.float64)
            _plots.add_data(panel, inputs[:, 0], outputs.reshape(len(inputs), -1))
        return _plots.finish(panel)

    def save(self, path: str | os.PathLike[str], *, X: Any = None) -> None:
        """Write a file that `gpvi.bnn.load` reads, given the network.

        The file holds all members, the sharpness, and the likelihood (unless its class is your own and not
        decorated with `gpvi.specs.spec`). The network is code and is not saved; to recognise it, the names and shapes
        of its arrays are, and its outputs for fixed weights and inputs. No value of the data is saved.

        Parameters
        ----------
        path
            The file to write, such as "curve.gpvi". An earlier save there is replaced; anything else is not.
        X
            One or more inputs, which tell the shape of an input. Required only if the posteriors have no target, as
            after `gpvi.load` or unpickling.

        Raises
        ------
        gpvi.errors.NotAvailableError
            If nothing tells the shape of an input.
        gpvi.errors.StorageError
            If the file cannot be written, or would replace something that is not a save.

        Examples
        --------
        >>> import tempfile
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> network = gpvi.bnn.mlp((1, 4, 1), "tanh")
        >>> predictive = gpvi.bnn.fit(
        ...     network, "gaussian", X, X, key=key, method="svgd", steps=50, progress=False
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     predictive.save(f"{folder}/line.gpvi")
        ...     again = gpvi.bnn.load(f"{folder}/line.gpvi", network)
        >>> bool((again.predict(X, key=key).mean == predictive.predict(X, key=key).mean).all())
        True
        """
        form = self._inputs if X is None else InputForm.of(checked_inputs(X, self.network))
        if form is None:
            raise NotAvailableError(
                "these posteriors do not know what shape the inputs of the network have, by which a saved network is "
                "told from others: pass some inputs, save(path, X=X)."
            )
        fingerprint = Fingerprint.of(self.network, self.likelihood, form, self.posterior.dtype)
        saved = _saving.Saved(
            members=tuple(saving.Saved.of(each) for each in self.members),
            likelihood=_saving.storable(self.likelihood),
            likelihood_class=type(self.likelihood).__name__,
            inputs=form,
            fingerprint=fingerprint,
            sharpness=self.sharpness,
        )
        _saving.write(saved, path)

    @property
    def _scales_classes(self) -> bool:
        return self.likelihood.classifies and self.sharpness != 1

    def _require_coordinates(self, outputs: int) -> None:
        """Refuse a likelihood that has another number of parameters than was trained."""
        extra = self.posterior.dim - self.network.size
        if extra != len(self.likelihood.extra(outputs)):
            raise InputError(
                f"the posterior has {extra} coordinates beside the {self.network.size} weights, but "
                f"{self.likelihood} has {len(self.likelihood.extra(outputs))}: use those of the target."
            )

    def _mixture(
        self, X: Any, draws: int | None, key: PRNGKeyArray | int
    ) -> tuple[Mixture, np.ndarray, PRNGKeyArray]:
        """Return the networks that a call averages over, the checked inputs, and a key for noise."""
        key = as_key(key)
        inputs = checked_inputs(X, self.network)
        self._require_coordinates(self.network.outputs(inputs))
        draw_key, noise_key = jax.random.split(key)
        networks = _draws.network_draws(self.members, draws, key=draw_key)
        return Mixture(self.network, self.likelihood, networks), inputs, noise_key

    def _all_rows(
        self, compute: Callable, X: Any, n: int | None, key: PRNGKeyArray | int, *, with_noise: bool
    ) -> Array:
        """Return what `compute` makes of all rows at once: what each network says of them."""
        with precision(self.posterior.dtype):
            mixture, inputs, noise_key = self._mixture(X, n, key)
            noise = {"key": noise_key} if with_noise else {}
            return compute(mixture, jnp.asarray(self._as_trained(inputs, "X")), **noise)

    def _by_rows(
        self,
        compute: Callable,
        X: Any,
        *,
        draws: int | None,
        key: PRNGKeyArray | int,
        y: np.ndarray | None = None,
        axis: int = 0,
        **options: Any,
    ) -> Any:
        """Return what `compute` makes of all rows, some at a time; `axis` is that of the rows in the result."""
        dtype = self.posterior.dtype
        with precision(dtype):
            mixture, inputs, _ = self._mixture(X, draws, key)
            tables = [self._as_trained(inputs, "X")]
            tables += [] if y is None else [self._as_trained(y, "y")]
            of_a_row = mixture.draws.block * self.network.outputs(inputs)
            at_once = min(len(inputs), max(1, _mixture.OUTPUTS_IN_MEMORY // of_a_row))
            if "levels" in options:
                options["levels"] = jnp.asarray(options["levels"], dtype)
            first, *rest = (
                compute(mixture, *map(jnp.asarray, block), **options)
                for block in row_blocks(tables, at_once)
            )
            if not rest:
                return first
            joined = jax.tree.map(lambda *of: jnp.concatenate(of, axis), first, *rest)
            number = len(inputs)
            return jax.tree.map(lambda a: jax.lax.slice_in_dim(a, 0, number, axis=axis), joined)

    def _as_trained(self, table: np.ndarray, name: str) -> np.ndarray:
        """Return floats in the precision of the posterior, and integers as they are."""
        floats = np.issubdtype(table.dtype, np.floating)
        return cast_in_range(table, self.posterior.dtype, name) if floats else table


def load(
    path: str | os.PathLike[str],
    network: Network,
    *,
    likelihood: Likelihood | str | None = None,
    classes: Iterable[Any] = (),
) -> Predictive:
    """Read what `Predictive.save` wrote. Nothing in the file is executed.

    The members have no target: `posterior.with_target(target)` gives them one, for `diagnose` and further training.

    Parameters
    ----------
    path
        The file. A directory that an earlier version of gpvi saved is read, too.
    network
        The network that was trained. Any other is refused, even if only its activation differs.
    likelihood
        The likelihood of the training; required only if it was not saved, since its class is your own and not decorated
        with `gpvi.specs.spec`.
    classes
        Your own classes that the prediction was made with, as for `gpvi.load`. They need not be given if the module
        that defines them is imported, and they are decorated with `gpvi.specs.spec`.

    Returns
    -------
    Predictive
        The predictive distribution; its predictions are the same bit for bit.

    Raises
    ------
    gpvi.errors.StorageError
        If the file is missing, damaged, or holds something else.
    gpvi.errors.InputError
        If network or likelihood are not those of the training.

    Examples
    --------
    >>> import tempfile
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> network = gpvi.bnn.mlp((1, 4, 1), "tanh")
    >>> predictive = gpvi.bnn.fit(
    ...     network, "gaussian", X, X, key=key, method="svgd", steps=50, progress=False
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     predictive.save(f"{folder}/line.gpvi")
    ...     again = gpvi.bnn.load(f"{folder}/line.gpvi", network)
    >>> again.likelihood
    Gaussian(noise='learned', start_noise=0.3)
    """
    require_network(network)
    saved = _saving.read(path, classes)
    chosen = saved.likelihood_or(None if likelihood is None else as_likelihood(likelihood))
    members = [Posterior.from_saved(each) for each in saved.members]
    fingerprint, dtype = saved.fingerprint, members[0].dtype
    fingerprint.require_network(network, saved.inputs, dtype)
    with understood(path, _saving.WHAT):
        predictive = Predictive(members, network, chosen, sharpness=saved.sharpness)
    predictive._require_coordinates(fingerprint.outputs.shape[1])
    fingerprint.require_likelihood(chosen, dtype)
    predictive._inputs = saved.inputs
    return predictive


def row_blocks(tables: Sequence[np.ndarray], at_once: int) -> Iterator[list[np.ndarray]]:
    """Iterate over the rows of some tables, `at_once` at a time; the last block is filled up with its last row."""
    for start in range(0, len(tables[0]), at_once):
        blocks = [table[start : start + at_once] for table in tables]
        missing = at_once - len(blocks[0])
        yield [np.concatenate([b, np.repeat(b[-1:], missing, axis=0)]) for b in blocks]
