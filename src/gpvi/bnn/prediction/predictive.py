r"""What a posterior over networks predicts: averages over draws, in a stream.

For y given x, with networks w_1…w_n drawn from the posterior:

    mean       E[y] = (1/n) Σ_i m_i,            m_i, v_i: mean and variance of y given w_i
    aleatoric  (1/n) Σ_i v_i                    what no more data would remove
    epistemic  (1/n) Σ_i (m_i − E[y])²          what the networks disagree about
    variance   their sum, by the law of total variance
    entropy    H[(1/n) Σ_i p_i], and mutual information, that less (1/n) Σ_i H[p_i], for classes.

With a `sharpness` s other than 1 the probabilities of classes are those of `gpvi.bnn.sharpened`, p^s / Σ_c p_c^s with
p = (1/n) Σ_i p_i. Their variance and entropy follow, and divide into the same shares as before.

Networks are drawn a block at a time, used and forgotten, and moments are taken of some rows at a time, so that memory
grows with neither beyond what is returned; a further pass draws the same networks again from the same keys. Quantiles
are those of the mixture's distribution function, (1/n) Σ_i P(Y ≤ y | w_i), see `_quantiles`: no y is drawn for them.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real, Shaped

from gpvi._inputs import held_as, precision
from gpvi.bnn.likelihoods import Bernoulli, Categorical, Likelihood, as_likelihood
from gpvi.bnn.model import checked_inputs, inputs_of, require_network
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction import _saving as saving
from gpvi.bnn.prediction._fingerprints import Fingerprint, Row
from gpvi.bnn.prediction._quantiles import inverted
from gpvi.bnn.prediction.temperature_scaling import sharpened
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import AbstractGenerator
from gpvi.generators.noise import standard_normal
from gpvi.methods.carriers import Particles
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.saving import understood
from gpvi.posterior.start import Start
from gpvi.specs import is_whole, require_between, require_key, require_positive
from gpvi.targets.coordinates import Affine

DRAWS = 1_000
"""The default number of networks."""
ENTRIES = 2**21
"""About how many weights one block of networks has."""
PAIRS = 2**13
"""About how many (network, datum) pairs go through at once."""
OUTPUTS = 2**22
"""About how many outputs of one block of networks are held at once, where they are not what is asked for."""

Sums = TypeVar("Sums")


class Prediction(eqx.Module):
    """Moments of the predictive distribution, row by row.

    Attributes
    ----------
    mean: of y, (b, m); for `Categorical` the probabilities of the classes, (b, C).
    aleatoric, epistemic: the parts of its variance; for classes, of their indicators.
    entropy, mutual_information: for classes, in nats; None otherwise.
    """

    mean: Float[Array, "b m"]
    aleatoric: Float[Array, "b m"]
    epistemic: Float[Array, "b m"]
    entropy: Float[Array, " b"] | None = None
    mutual_information: Float[Array, " b"] | None = None

    @property
    def variance(self) -> Float[Array, "b m"]:
        """Of y: aleatoric + epistemic."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Float[Array, "b m"]:
        """The standard deviation of y."""
        return jnp.sqrt(self.variance)


class Networks(eqx.Module):
    """Where networks come from, a block at a time: a generator and a key, or a table of particles.

    The arrays of several generators are stacked. A block is of one of them, the m-th has networks m, m + M, m + 2M, …
    """

    source: AbstractGenerator | Float[Array, "n d"]
    key: PRNGKeyArray
    number: int = eqx.field(static=True)
    block: int = eqx.field(static=True)
    members: int = eqx.field(static=True, default=1)

    @property
    def blocks(self) -> int:
        """How many blocks hold them all; the last of each member may be partly idle."""
        return self.members * -(-self.number // (self.members * self.block))

    def draw(self, index: Int[Array, ""]) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
        """A block of networks, and 1 or 0 for each: whether it counts."""
        member, first = index % self.members, index // self.members * self.block
        places = (first + jnp.arange(self.block)) * self.members + member
        counts = places < self.number
        if isinstance(self.source, AbstractGenerator):
            own = self.source if self.members == 1 else _member(self.source, member)
            z = standard_normal(own, self.block, key=jax.random.fold_in(self.key, index))
            flat = jax.vmap(own)(z)
        else:
            flat = self.source[jnp.minimum(places, self.number - 1)]
        return flat, counts.astype(flat.dtype)

    def in_order(self, blocks: Shaped[Array, "j k ..."]) -> Shaped[Array, "n ..."]:
        """What was computed block by block, for each network in turn, without the idle ones."""
        rest = blocks.shape[2:]
        by_member = blocks.reshape(-1, self.members, self.block, *rest)
        return by_member.swapaxes(1, 2).reshape(-1, *rest)[: self.number]


def _member(stacked: AbstractGenerator, index: Int[Array, ""]) -> AbstractGenerator:
    """One generator of several."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, stacked)


class Predictive:
    """The predictive distribution of a posterior over the weights of a network.

    Parameters
    ----------
    posterior: as `gpvi.fit` returns it for `gpvi.bnn.target`; a loaded one serves as well. Several, of one method,
        predict as their even mixture.
    network, likelihood: those of the target.
    sharpness: s, the exponent of the probabilities of classes, see `gpvi.bnn.sharpness`. `sample` and `outputs` are of
        single networks, as they are.

    `draws` below is the number of networks: new ones from a generator (1,000 by default), as many as asked; of a
    particle method or chains all they have by default, and a random choice where fewer are asked.
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
        of_target = None if self.posterior.target is None else inputs_of(self.posterior.target)
        self._row = None if of_target is None else Row.of(of_target)
        kinds = {jax.tree.structure((each.model, each.affine)) for each in self.members}
        if len(kinds) > 1 or len({each.dtype for each in self.members}) > 1:
            raise InputError(
                f"the {len(self.members)} posteriors are of {len(kinds)} different forms; give posteriors of one "
                "network, fitted by one method with the same options."
            )
        if self.posterior.dim < network.size:
            raise InputError(
                f"the posterior has {self.posterior.dim} coordinates, fewer than the {network.size} weights of the "
                "network."
            )

    def predict(self, X: Any, *, key: PRNGKeyArray, draws: int | None = None) -> Prediction:
        """Mean, variance with its two parts, and for classes entropy and mutual information."""
        found = self._run(_predict, X, draws, key, axis=0)
        if not self._sharpens:
            return found
        with precision(self.posterior.dtype):
            return _sharper(found, self.likelihood, self.sharpness)

    def log_prob(
        self, X: Any, y: Any, *, key: PRNGKeyArray, draws: int | None = None
    ) -> Float[Array, " b"]:
        """log p(y | x, data) = log (1/n) Σ_i p(y | x, w_i) of each row."""
        inputs = checked_inputs(X, self.network)
        values = self.likelihood.prepare(y, self.network.outputs(inputs))
        if len(inputs) != len(values):
            raise InputError(f"X has {len(inputs)} rows and y {len(values)}; they must agree.")
        if not self._sharpens:
            return self._run(_log_prob, inputs, draws, key, y=values, axis=0)
        logs, labels = self.log_probabilities(inputs, key=key, draws=draws), values.astype(int)
        return jnp.take_along_axis(logs, labels.reshape(-1, 1), 1)[:, 0]

    def log_probabilities(
        self, X: Any, *, key: PRNGKeyArray, draws: int | None = None
    ) -> Float[Array, "b c"]:
        """log p(c | x, data) of every class, (b, C), also where the probability is 0 in floats."""
        inputs = checked_inputs(X, self.network)
        classes = self._classes(self.network.outputs(inputs))
        logs = self._run(partial(_class_log_probs, classes=classes), inputs, draws, key, axis=0)
        with precision(self.posterior.dtype):
            return jax.nn.log_softmax(self.sharpness * logs, 1) if self._sharpens else logs

    def quantiles(
        self,
        X: Any,
        levels: Sequence[float] | float,
        *,
        key: PRNGKeyArray,
        draws: int | None = None,
    ) -> Float[Array, "q b m"]:
        """The quantiles of y at the given levels, observation noise included: (levels, b, m), the levels first.

        Of a single level the first axis has length 1. The estimators' `predict_quantiles` has the levels last.
        """
        at = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        if at.ndim != 1 or not ((at > 0) & (at < 1)).all():
            raise InputError(f"levels are {levels!r}; they must lie between 0 and 1.")
        if self.likelihood.classifies:
            raise NotAvailableError(
                f"{type(self.likelihood).__name__} is over classes, which have no order, so there are no quantiles or "
                "intervals. Use the probabilities, Predictive.predict(…).mean."
            )
        return self._run(_quantiles, X, draws, key, levels=at, axis=1)

    def interval(
        self, X: Any, level: float = 0.9, *, key: PRNGKeyArray, draws: int | None = None
    ) -> tuple[Float[Array, "b m"], Float[Array, "b m"]]:
        """The central interval that holds y with probability `level`."""
        require_between("level", level, 0, 1)
        lower, upper = self.quantiles(X, [(1 - level) / 2, (1 + level) / 2], key=key, draws=draws)
        return lower, upper

    def sample(self, X: Any, n: int | None = None, *, key: PRNGKeyArray) -> Array:
        """y from each of n networks, (n, b, m); labels, (n, b), for `Categorical`."""
        return self._run(_sample, X, n, key)

    def outputs(self, X: Any, n: int | None = None, *, key: PRNGKeyArray) -> Float[Array, "n b o"]:
        """The outputs of each of n networks."""
        return self._run(_outputs, X, n, key)

    def save(self, directory: str | os.PathLike[str], *, X: Any = None) -> None:
        """Write a directory of safetensors and JSON that `gpvi.bnn.load` reads, given the network.

        It holds all members, and the likelihood unless that is of a class of your own. The network is code, and is not
        saved: the names and shapes of its arrays are, and its outputs for made-up weights and inputs, by which `load`
        tells it from others. X, one row or more, says what shape inputs have where the posteriors do not know, as those
        of `gpvi.load` and of a pickle; none of its values are saved.
        """
        row = self._row if X is None else Row.of(checked_inputs(X, self.network))
        if row is None:
            raise NotAvailableError(
                "these posteriors do not know what shape the inputs of the network have, by which a saved network is "
                "told from others: pass some inputs, save(directory, X=X)."
            )
        mark = Fingerprint.of(self.network, self.likelihood, row, self.posterior.dtype)
        members = tuple(each.saved() for each in self.members)
        kept, called = saving.storable(self.likelihood), type(self.likelihood).__name__
        saving.write(saving.Saved(members, kept, called, row, mark, self.sharpness), directory)

    @property
    def _sharpens(self) -> bool:
        return self.likelihood.classifies and self.sharpness != 1

    def _classes(self, outputs: int) -> int:
        """How many classes y has, which must be one label for each row."""
        one = isinstance(self.likelihood, Bernoulli) and outputs == 1
        if not one and not isinstance(self.likelihood, Categorical):
            raise NotAvailableError(
                f"{self.likelihood} with {outputs} outputs is no distribution over classes: use log_prob(X, y), and a "
                "sharpness of 1."
            )
        return 2 if one else outputs

    def _require_coordinates(self, outputs: int) -> None:
        """Refuse a likelihood that has other coordinates than those that were trained."""
        extra = self.posterior.dim - self.network.size
        if extra != len(self.likelihood.extra(outputs)):
            raise InputError(
                f"the posterior has {extra} coordinates beside the {self.network.size} weights, but "
                f"{self.likelihood} has {len(self.likelihood.extra(outputs))}: use those of the target."
            )

    def _run(
        self,
        compute: Callable,
        X: Any,
        draws: int | None,
        key: PRNGKeyArray,
        *,
        y: np.ndarray | None = None,
        levels: np.ndarray | None = None,
        axis: int | None = None,
    ) -> Any:
        """What is computed of all rows; some at a time, where `axis` is theirs in the result."""
        require_key(key)
        inputs = checked_inputs(X, self.network)
        outputs = self.network.outputs(inputs)
        self._require_coordinates(outputs)
        dtype = self.posterior.dtype
        with precision(dtype):
            draw_key, noise_key = jax.random.split(key)
            networks = self._networks(draws, draw_key)
            tables = [
                held_as(a, dtype, name) if np.issubdtype(a.dtype, np.floating) else a
                for name, a in {"X": inputs, "y": y}.items()
                if a is not None
            ]
            shared = () if levels is None else (jnp.asarray(levels, dtype),)
            number = at_once = len(inputs)
            if axis is not None:
                at_once = min(number, max(1, OUTPUTS // (networks.block * outputs)))
            known = self.network, self.likelihood, networks, noise_key
            first, *rest = (
                compute(*known, *map(jnp.asarray, block), *shared)
                for block in row_blocks(tables, at_once)
            )
            if axis is None or not rest:
                return first
            joined = jax.tree.map(lambda *of: jnp.concatenate(of, axis), first, *rest)
            return jax.tree.map(lambda a: jax.lax.slice_in_dim(a, 0, number, axis=axis), joined)

    def _networks(self, draws: int | None, key: PRNGKeyArray) -> Networks:
        block, members = max(1, min(256, ENTRIES // self.posterior.dim)), len(self.members)
        if not isinstance(self.posterior.model, Particles):
            number = DRAWS if draws is None else _count(draws)
            block = min(block, -(-number // members))
            if members == 1:
                return Networks(self.posterior.generator, key, number, block)
            own_key, key = jax.random.split(key)
            order = np.asarray(jax.random.permutation(own_key, members))
            stacked = _stacked([self.members[i].generator for i in order])
            return Networks(stacked, key, number, block, members)
        own = self.posterior if members == 1 else _pooled(self.members)
        table = own.particles if draws is None else own.sample(_count(draws), key=key)
        return Networks(table, key, len(table), min(block, len(table)))


def load(
    directory: str | os.PathLike[str],
    network: Network,
    *,
    likelihood: Likelihood | str | None = None,
) -> Predictive:
    """Read what `Predictive.save` wrote; nothing in the files is executed.

    Parameters
    ----------
    network: the one that was trained. Another one is refused, also where only its activation differs.
    likelihood: the one that was trained with, where it is of a class of your own, which is not saved.

    The members have no target: `diagnose` and training further need `posterior.with_target(target)`.
    """
    require_network(network)
    saved = saving.read(directory)
    chosen = saved.chosen(None if likelihood is None else as_likelihood(likelihood))
    members = [Posterior(**each._asdict()) for each in saved.members]
    mark, row, dtype = saved.fingerprint, saved.row, members[0].dtype
    mark.require_network(network, row, dtype)
    with understood(directory, saving.WHAT):
        found = Predictive(members, network, chosen, sharpness=saved.sharpness)
    found._require_coordinates(mark.outputs.shape[1])
    mark.require_likelihood(chosen, dtype)
    found._row = row
    return found


def row_blocks(tables: Sequence[np.ndarray], at_once: int) -> Iterator[list[np.ndarray]]:
    """All rows of the tables, so many at a time; the last row fills the last block up."""
    for start in range(0, len(tables[0]), at_once):
        blocks = [table[start : start + at_once] for table in tables]
        idle = at_once - len(blocks[0])
        yield [np.concatenate([b, np.repeat(b[-1:], idle, axis=0)]) for b in blocks]


def _pooled(members: Sequence[Posterior]) -> Posterior:
    """The particles of all, in the target's own coordinates."""
    first = members[0]
    table = Particles(jnp.concatenate([each.particles for each in members]))
    start = Start(Affine.identity(first.dim, first.dtype))
    return Posterior(first.method, table, start, first.names, first.training)


def _stacked(generators: Sequence[AbstractGenerator]) -> AbstractGenerator:
    """Generators of one form as one, whose arrays have a leading axis."""
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *generators
    )


def _count(draws: Any) -> int:
    if not is_whole(draws) or draws < 1:
        raise InputError(f"the number of networks is {draws!r}; it must be a whole number ≥ 1.")
    return int(draws)


def _apply(
    network: Network, flat: Float[Array, "k d"], inputs: Real[Array, "b ..."]
) -> tuple[Float[Array, "k b o"], Float[Array, "k e"]]:
    """The outputs of a block of networks for all rows, some rows at a time; and what is not a weight."""
    weights, extra = flat[:, : network.size], flat[:, network.size :]
    batched = jax.vmap(network.apply, (0, None))
    rows = max(1, PAIRS // len(flat))
    if len(inputs) <= rows:
        return batched(weights, inputs), extra
    pieces = -(-len(inputs) // rows)
    idle = [(0, pieces * rows - len(inputs))] + [(0, 0)] * (inputs.ndim - 1)
    padded = jnp.pad(inputs, idle).reshape(pieces, rows, *inputs.shape[1:])
    out = jax.lax.map(lambda piece: batched(weights, piece), padded)
    out = jnp.moveaxis(out, 0, 1).reshape(len(flat), pieces * rows, -1)
    return out[:, : len(inputs)], extra


def _stream(
    network: Network,
    networks: Networks,
    inputs: Real[Array, "b ..."],
    add: Callable[[Sums, Array, Array, Array], Sums],
    start: Sums,
) -> Sums:
    """`add(sums, outputs, extra, counts)` over all blocks of networks."""

    def one(sums: Sums, index: Int[Array, ""]) -> tuple[Sums, None]:
        flat, counts = networks.draw(index)
        out, extra = _apply(network, flat, inputs)
        return add(sums, out, extra, counts), None

    return jax.lax.scan(one, start, jnp.arange(networks.blocks))[0]


class _Moments(eqx.Module):
    """Running mean and sum of squares about it, joined block by block (Chan, Golub and LeVeque 1979).

    A block may hold nothing that counts.
    """

    number: Array
    mean: Array
    squares: Array

    @classmethod
    def none(cls, shape: tuple[int, ...], dtype: Any) -> "_Moments":
        return cls(jnp.zeros((), dtype), jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def joined(self, values: Float[Array, "k ..."], counts: Float[Array, " k"]) -> "_Moments":
        number = counts.sum()
        total = jnp.maximum(self.number + number, 1)
        mean = jnp.tensordot(counts, values, 1) / jnp.maximum(number, 1)
        squares = jnp.tensordot(counts, (values - mean) ** 2, 1)
        gap = mean - self.mean
        return _Moments(
            self.number + number,
            self.mean + gap * (number / total),
            self.squares + squares + gap * (gap * (self.number * number / total)),
        )


@eqx.filter_jit
def _predict(
    network: Network,
    likelihood: Likelihood,
    networks: Networks,
    key: PRNGKeyArray,
    inputs: Real[Array, "b ..."],
) -> Prediction:
    def terms(out: Array, extra: Array) -> tuple[Array, Array, Array]:
        mean, variance = likelihood.moments(out, extra)
        own = likelihood.entropy(out) if likelihood.classifies else jnp.zeros(len(out), out.dtype)
        return mean, variance, own

    def add(sums: tuple[_Moments, Array, Array], out: Array, extra: Array, counts: Array):
        moments, variances, entropies = sums
        mean, variance, own = jax.vmap(terms)(out, extra)
        return (
            moments.joined(mean, counts),
            variances + jnp.tensordot(counts, variance, 1),
            entropies + counts @ own,
        )

    shape, dtype = _shapes(network, likelihood, networks, inputs)
    start = (_Moments.none(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(shape[0], dtype))
    moments, variances, entropies = _stream(network, networks, inputs, add, start)
    n = networks.number
    mean, aleatoric, epistemic = moments.mean, variances / n, moments.squares / n
    if not likelihood.classifies:
        return Prediction(mean, aleatoric, epistemic)
    entropy = likelihood.mixture_entropy(mean)
    return Prediction(mean, aleatoric, epistemic, entropy, jnp.maximum(entropy - entropies / n, 0))


def _shapes(
    network: Network, likelihood: Likelihood, networks: Networks, inputs: Array
) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of the mean of y."""

    def mean() -> Array:
        flat, _ = networks.draw(jnp.zeros((), int))
        out = network.apply(flat[0, : network.size], inputs)
        return likelihood.moments(out, flat[0, network.size :])[0]

    found = jax.eval_shape(mean)
    return found.shape, found.dtype


@eqx.filter_jit
def _log_prob(
    network: Network,
    likelihood: Likelihood,
    networks: Networks,
    key: PRNGKeyArray,
    inputs: Real[Array, "b ..."],
    y: Array,
) -> Float[Array, " b"]:
    def add(total: Array, out: Array, extra: Array, counts: Array) -> Array:
        terms = jax.vmap(likelihood.log_prob, (0, 0, None))(out, extra, y)
        own = jax.nn.logsumexp(jnp.where(counts[:, None] > 0, terms, -jnp.inf), 0)
        return jnp.logaddexp(total, own)

    _, dtype = _shapes(network, likelihood, networks, inputs)
    total = _stream(network, networks, inputs, add, jnp.full(len(inputs), -jnp.inf, dtype))
    return total - math.log(networks.number)


@eqx.filter_jit
def _class_log_probs(
    network: Network,
    likelihood: Likelihood,
    networks: Networks,
    key: PRNGKeyArray,
    inputs: Real[Array, "b ..."],
    *,
    classes: int,
) -> Float[Array, "b c"]:
    """log (1/n) Σ_i p(c | x, w_i)."""
    outputs = network.outputs(inputs)
    labels = jnp.asarray(likelihood.prepare(np.arange(classes), outputs))
    every = jnp.broadcast_to(labels[:, None], (classes, len(inputs), *labels.shape[1:]))

    def add(total: Array, out: Array, extra: Array, counts: Array) -> Array:
        of_class = jax.vmap(likelihood.log_prob, (None, None, 0), 1)
        terms = jax.vmap(of_class, (0, 0, None))(out, extra, every)
        own = jax.nn.logsumexp(jnp.where(counts[:, None, None] > 0, terms, -jnp.inf), 0)
        return jnp.logaddexp(total, own)

    _, dtype = _shapes(network, likelihood, networks, inputs)
    start = jnp.full((len(inputs), classes), -jnp.inf, dtype)
    return _stream(network, networks, inputs, add, start) - math.log(networks.number)


def _sharper(found: Prediction, likelihood: Likelihood, s: float) -> Prediction:
    """Probabilities to the power of s; variance and entropy are theirs, in the shares that they had."""
    mean = sharpened(found.mean, s)
    grown = _ratio(mean * (1 - mean), found.aleatoric + found.epistemic)
    entropy = likelihood.mixture_entropy(mean)
    shared = None
    if found.mutual_information is not None and found.entropy is not None:
        shared = found.mutual_information * _ratio(entropy, found.entropy)
    return Prediction(mean, found.aleatoric * grown, found.epistemic * grown, entropy, shared)


def _ratio(above: Array, below: Array) -> Array:
    """0 where there is nothing to divide."""
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), 0)


@eqx.filter_jit
def _quantiles(
    network: Network,
    likelihood: Likelihood,
    networks: Networks,
    key: PRNGKeyArray,
    inputs: Real[Array, "b ..."],
    levels: Float[Array, " q"],
) -> Float[Array, "q b m"]:
    """All outputs of some rows are held, and the mixture's distribution function is inverted.

    A quantile at level p lies within √((1−p)/p) and √(p/(1−p)) standard deviations of the mean (Cantelli), which is
    where the search begins. Where y has no variance, it begins near the mean of the networks' means, or near zero.
    """
    moments = _predict(network, likelihood, networks, key, inputs)
    centre = jnp.where(jnp.isfinite(moments.mean), moments.mean, 0)
    apart = jnp.sqrt(moments.epistemic)
    apart = jnp.where(jnp.isfinite(apart) & (apart > 0), apart, 1)
    spread = jnp.where(jnp.isfinite(moments.std) & (moments.std > 0), moments.std, apart)
    p = levels[:, None, None]
    number, b = networks.blocks * networks.block, len(inputs)
    rows = min(b, max(1, OUTPUTS // (number * network.outputs(inputs))))
    together = _divisor(networks.block, PAIRS // (len(levels) * rows * centre.shape[1]))

    def of_rows(piece: tuple[Array, Array, Array]) -> Array:
        inputs, centre, spread = piece

        def outputs(index: Int[Array, ""]) -> tuple[Array, Array, Array]:
            flat, counts = networks.draw(index)
            return *_apply(network, flat, inputs), counts

        held = jax.lax.map(outputs, jnp.arange(networks.blocks))

        def cdf(y: Array) -> Array:
            def add(total: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
                out, extra, counts = block
                own = lambda one: likelihood.cdf(one[0], one[1], y)  # noqa: E731
                each = jax.lax.map(own, (out, extra), batch_size=together)
                return total + jnp.tensordot(counts, each, 1), None

            return jax.lax.scan(add, jnp.zeros_like(y), held)[0] / networks.number

        low = centre - 1.01 * jnp.sqrt((1 - p) / p) * spread
        high = centre + 1.01 * jnp.sqrt(p / (1 - p)) * spread
        level = jnp.broadcast_to(p, low.shape)
        return inverted(cdf, level, low, high, whole=likelihood.discrete)

    pieces = -(-b // rows)

    def cut(table: Array) -> Array:
        idle = [(0, pieces * rows - b)] + [(0, 0)] * (table.ndim - 1)
        return jnp.pad(table, idle, mode="edge").reshape(pieces, rows, *table.shape[1:])

    found = jax.lax.map(of_rows, (cut(inputs), cut(centre), cut(spread)))
    return jnp.moveaxis(found, 0, 1).reshape(len(levels), pieces * rows, -1)[:, :b]


def _divisor(number: int, most: int) -> int:
    """The greatest divisor that is at most so much, and 1 at least."""
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(1, most))


@eqx.filter_jit
def _sample(
    network: Network,
    likelihood: Likelihood,
    networks: Networks,
    key: PRNGKeyArray,
    inputs: Real[Array, "b ..."],
) -> Array:
    def one(index: Int[Array, ""]) -> Array:
        flat, _ = networks.draw(index)
        out, extra = _apply(network, flat, inputs)
        keys = jax.random.split(jax.random.fold_in(key, index), len(flat))
        return jax.vmap(lambda o, e, k: likelihood.sample(o, e, key=k))(out, extra, keys)

    return networks.in_order(jax.lax.map(one, jnp.arange(networks.blocks)))


@eqx.filter_jit
def _outputs(
    network: Network,
    likelihood: Likelihood,
    networks: Networks,
    key: PRNGKeyArray,
    inputs: Real[Array, "b ..."],
) -> Float[Array, "n b o"]:
    def one(index: Int[Array, ""]) -> Array:
        return _apply(network, networks.draw(index)[0], inputs)[0]

    return networks.in_order(jax.lax.map(one, jnp.arange(networks.blocks)))
