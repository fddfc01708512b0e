r"""The mixture of the predictions of many networks, computed block by block of networks.

With networks w_1…w_n drawn from the posterior, and m_i, v_i the mean and variance of y given w_i:

    mean       E[y] = (1/n) Σ_i m_i
    aleatoric  (1/n) Σ_i v_i                    variance that no more data would remove
    epistemic  (1/n) Σ_i (m_i − E[y])²          disagreement between networks
    variance   their sum, by the law of total variance
    entropy    H[(1/n) Σ_i p_i], and mutual information, that less (1/n) Σ_i H[p_i], for classes.

Quantiles invert the distribution function (1/n) Σ_i P(Y ≤ y | w_i) (see `_quantiles`): no y is drawn for them.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction._draws import NetworkDraws
from gpvi.bnn.prediction._quantiles import invert_cdf
from gpvi.bnn.prediction.prediction import Prediction

FORWARD_PASSES = 2**13
"""About how many (network, row) pairs are computed at once."""
OUTPUTS_IN_MEMORY = 2**22
"""About how many outputs of one block of networks are in memory at once, unless they are the result."""

Inputs = Real[Array, "b ..."]
Sums = TypeVar("Sums")


class Mixture(eqx.Module):
    """Networks drawn from the posterior, with the likelihood of y given each of them."""

    network: Network = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)
    draws: NetworkDraws

    @eqx.filter_jit
    def predict(self, inputs: Inputs) -> Prediction:
        """Return the moments of y, and for classes entropy and mutual information."""
        likelihood, n = self.likelihood, self.draws.number

        def moments(outputs: Array, extra: Array) -> tuple[Array, Array, Array]:
            mean, variance = likelihood.moments(outputs, extra)
            classifies = likelihood.classifies
            zeros = jnp.zeros(len(outputs), outputs.dtype)
            return mean, variance, likelihood.entropy(mean) if classifies else zeros

        def add(sums: tuple[_Moments, Array, Array], outputs: Array, extra: Array, used: Array):
            means, variances, entropies = sums
            mean, variance, entropy = jax.vmap(moments)(outputs, extra)
            return (
                means.joined(mean, used),
                variances + jnp.tensordot(used, variance, 1),
                entropies + used @ entropy,
            )

        shape, dtype = self._mean_shape(inputs)
        zeros = jnp.zeros(shape, dtype)
        start = _Moments.none(shape, dtype), zeros, jnp.zeros(shape[0], dtype)
        means, variances, entropies = self._accumulate(inputs, add, start)
        mean, aleatoric, epistemic = means.mean, variances / n, means.squares / n
        if not likelihood.classifies:
            return Prediction(mean, aleatoric, epistemic)
        entropy = likelihood.entropy(mean)
        information = jnp.maximum(entropy - entropies / n, 0)
        return Prediction(mean, aleatoric, epistemic, entropy, information)

    @eqx.filter_jit
    def log_prob(self, inputs: Inputs, y: Array) -> Float[Array, " b"]:
        """Return log (1/n) Σ_i p(y | x, w_i) of each row."""

        def terms(outputs: Array, extra: Array) -> Array:
            return self.likelihood.log_prob(outputs, extra, y)

        return self._log_mean_exp(inputs, terms, (len(inputs),))

    @eqx.filter_jit
    def class_log_probs(self, inputs: Inputs, *, classes: int) -> Float[Array, "b c"]:
        """Return log (1/n) Σ_i p(c | x, w_i) of each row and class."""
        labels = jnp.asarray(
            self.likelihood.prepare(np.arange(classes), self.network.outputs(inputs))
        )
        tiled = jnp.broadcast_to(labels[:, None], (classes, len(inputs), *labels.shape[1:]))
        of_classes = jax.vmap(self.likelihood.log_prob, (None, None, 0), 1)

        def terms(outputs: Array, extra: Array) -> Array:
            return of_classes(outputs, extra, tiled)

        return self._log_mean_exp(inputs, terms, (len(inputs), classes))

    @eqx.filter_jit
    def quantiles(self, inputs: Inputs, levels: Float[Array, " q"]) -> Float[Array, "q b m"]:
        """Return quantiles of y, by inverting the distribution function of some rows at a time.

        A quantile at level p lies within √((1−p)/p) and √(p/(1−p)) standard deviations of the mean (Cantelli), which is
        where the search starts. If y has no variance, it starts near the mean of the networks' means, or near zero.
        """
        draws, b = self.draws, len(inputs)
        found = self.predict(inputs)
        centre = jnp.where(jnp.isfinite(found.mean), found.mean, 0)
        between = jnp.sqrt(found.epistemic)
        between = jnp.where(jnp.isfinite(between) & (between > 0), between, 1)
        spread = jnp.where(jnp.isfinite(found.std) & (found.std > 0), found.std, between)
        p = levels[:, None, None]
        outputs = self.network.outputs(inputs)
        rows = min(b, max(1, OUTPUTS_IN_MEMORY // (draws.blocks * draws.block * outputs)))
        at_once = FORWARD_PASSES // (len(levels) * rows * centre.shape[1])
        batch_size = _largest_divisor(draws.block, at_once)

        def of_rows(piece: tuple[Array, Array, Array]) -> Array:
            inputs, centre, spread = piece

            def block_outputs(index: Int[Array, ""]) -> tuple[Array, Array, Array]:
                flat, used = draws.draw(index)
                return *self._apply(flat, inputs), used

            blocks = jax.lax.map(block_outputs, jnp.arange(draws.blocks))

            def cdf(y: Array) -> Array:
                def add(total: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
                    outputs, extra, used = block
                    of_network = lambda one: self.likelihood.cdf(one[0], one[1], y)  # noqa: E731
                    each = jax.lax.map(of_network, (outputs, extra), batch_size=batch_size)
                    return total + jnp.tensordot(used, each, 1), None

                return jax.lax.scan(add, jnp.zeros_like(y), blocks)[0] / draws.number

            low = centre - 1.01 * jnp.sqrt((1 - p) / p) * spread
            high = centre + 1.01 * jnp.sqrt(p / (1 - p)) * spread
            level = jnp.broadcast_to(p, low.shape)
            return invert_cdf(cdf, level, low, high, integers=self.likelihood.discrete)

        pieces = tuple(_in_pieces(each, rows, mode="edge") for each in (inputs, centre, spread))
        by_piece = jnp.moveaxis(jax.lax.map(of_rows, pieces), 0, 1)
        return by_piece.reshape(len(levels), len(pieces[0]) * rows, -1)[:, :b]

    @eqx.filter_jit
    def sample(self, inputs: Inputs, *, key: PRNGKeyArray) -> Array:
        """Return y drawn from each network, (n, b, …)."""

        def of_block(index: Int[Array, ""]) -> Array:
            flat, _ = self.draws.draw(index)
            outputs, extra = self._apply(flat, inputs)
            keys = jax.random.split(jax.random.fold_in(key, index), len(flat))
            one = lambda o, e, k: self.likelihood.sample(o, e, key=k)  # noqa: E731
            return jax.vmap(one)(outputs, extra, keys)

        return self.draws.in_order(jax.lax.map(of_block, jnp.arange(self.draws.blocks)))

    @eqx.filter_jit
    def outputs(self, inputs: Inputs) -> Float[Array, "n b o"]:
        """Return the outputs of each network."""

        def of_block(index: Int[Array, ""]) -> Array:
            return self._apply(self.draws.draw(index)[0], inputs)[0]

        return self.draws.in_order(jax.lax.map(of_block, jnp.arange(self.draws.blocks)))

    def _apply(
        self, flat: Float[Array, "k d"], inputs: Inputs
    ) -> tuple[Float[Array, "k b o"], Float[Array, "k e"]]:
        """Return the outputs of a block of networks, computed some rows at a time, and the likelihood's parameters."""
        size, b = self.network.size, len(inputs)
        weights, extra = flat[:, :size], flat[:, size:]
        batched = jax.vmap(self.network.apply, (0, None))
        rows = max(1, FORWARD_PASSES // len(flat))
        if b <= rows:
            return batched(weights, inputs), extra
        pieces = _in_pieces(inputs, rows, mode="constant")
        outputs = jax.lax.map(lambda piece: batched(weights, piece), pieces)
        outputs = jnp.moveaxis(outputs, 0, 1).reshape(len(flat), len(pieces) * rows, -1)
        return outputs[:, :b], extra

    def _accumulate(
        self, inputs: Inputs, add: Callable[[Sums, Array, Array, Array], Sums], start: Sums
    ) -> Sums:
        """Return `start` after `add(sums, outputs, extra, used)` of every block of networks."""

        def step(sums: Sums, index: Int[Array, ""]) -> tuple[Sums, None]:
            flat, used = self.draws.draw(index)
            outputs, extra = self._apply(flat, inputs)
            return add(sums, outputs, extra, used), None

        return jax.lax.scan(step, start, jnp.arange(self.draws.blocks))[0]

    def _log_mean_exp(
        self, inputs: Inputs, terms: Callable[[Array, Array], Array], shape: tuple[int, ...]
    ) -> Array:
        """Return log (1/n) Σ_i exp(terms_i), where `terms(outputs, extra)` of one network has this shape."""

        def add(total: Array, outputs: Array, extra: Array, used: Array) -> Array:
            each = jax.vmap(terms)(outputs, extra)
            counted = jnp.where(used.reshape(-1, *[1] * len(shape)) > 0, each, -jnp.inf)
            return jnp.logaddexp(total, jax.nn.logsumexp(counted, 0))

        _, dtype = self._mean_shape(inputs)
        total = self._accumulate(inputs, add, jnp.full(shape, -jnp.inf, dtype))
        return total - math.log(self.draws.number)

    def _mean_shape(self, inputs: Inputs) -> tuple[tuple[int, ...], Any]:
        """Return the shape and dtype of the mean of y."""

        def mean() -> Array:
            flat, _ = self.draws.draw(jnp.zeros((), int))
            size = self.network.size
            outputs = self.network.apply(flat[0, :size], inputs)
            return self.likelihood.moments(outputs, flat[0, size:])[0]

        found = jax.eval_shape(mean)
        return found.shape, found.dtype


class _Moments(eqx.Module):
    """A running mean and sum of squares about it, joined block by block (Chan, Golub and LeVeque 1979).

    A block may have no value that is used.
    """

    number: Array
    mean: Array
    squares: Array

    @classmethod
    def none(cls, shape: tuple[int, ...], dtype: Any) -> "_Moments":
        return cls(jnp.zeros((), dtype), jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def joined(self, values: Float[Array, "k ..."], used: Float[Array, " k"]) -> "_Moments":
        number = used.sum()
        total = jnp.maximum(self.number + number, 1)
        mean = jnp.tensordot(used, values, 1) / jnp.maximum(number, 1)
        squares = jnp.tensordot(used, (values - mean) ** 2, 1)
        gap = mean - self.mean
        return _Moments(
            self.number + number,
            self.mean + gap * (number / total),
            self.squares + squares + gap * (gap * (self.number * number / total)),
        )


def _in_pieces(table: Real[Array, "b ..."], rows: int, mode: str) -> Real[Array, "p r ..."]:
    """Cut a table into pieces of equally many rows; the last is padded, `mode` as for `jnp.pad`."""
    pieces = -(-len(table) // rows)
    padding = [(0, pieces * rows - len(table))] + [(0, 0)] * (table.ndim - 1)
    return jnp.pad(table, padding, mode=mode).reshape(pieces, rows, *table.shape[1:])


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`; at least 1."""
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(1, most))
