r"""Cross-fitting: the sharpness of class probabilities, found on folds that members did not train on.

A generator is wider than the posterior it fits: on easy data the average over its networks predicts 0.9 where it is
always correct. Training labels cannot tell by how much, since labels of pure noise are fitted, too. So class
probabilities are temperature-scaled on held-out folds: each member skips one fold during the first half of training.
For members m = 1, 2, … with predictions p_m, the sharpness s (see `gpvi.bnn.prediction.temperature_scaling`) maximises

    Σ_m Σ_{i in fold m} log p_m(y_i | x_i)^s / Σ_c p_m(c | x_i)^s  +  log p(s).

In the second half all members train on all data. No step is added; all that is lost are the rows that a member skips at
first. They are replaced by copies of other rows: the likelihood keeps its weight, and both halves share one compiled
program.

s errs on the side of caution. A member that lacks a fold is wrong more often than the mixture of all, and more
confident, since an average is less confident than its members. The prior keeps s near 1 if labels are few.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, Num, PRNGKeyArray, Shaped

from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction.predictive import Predictive
from gpvi.bnn.prediction.temperature_scaling import fit_sharpness
from gpvi.posterior.posterior import Posterior

FOLDS = 5
"""The least number of folds; there are at least as many as members."""
MOST_ENTRIES = 2**27
"""The most numbers that the copies of X, one for each member, may have; beyond that there is no cross-fitting."""
DRAWS = 256
"""The networks of a member that predict its held-out fold."""


class CrossFitting(NamedTuple):
    """The rows of the data that each member trains on, n with repetitions, and those of its held-out fold."""

    training: tuple[Int[np.ndarray, " n"], ...]
    held_out: tuple[Int[np.ndarray, " u"], ...]

    @classmethod
    def of(
        cls, labels: Shaped[np.ndarray, "n ..."], members: int, *, key: PRNGKeyArray
    ) -> "CrossFitting":
        """Draw random folds that are stratified: the numbers of rows of a class differ by one at most."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        number = len(labels)
        fold = np.empty(number, int)
        by_class = np.lexsort((rng.random(number), labels.reshape(number)))
        fold[by_class] = np.arange(number) % max(FOLDS, members)
        training, held_out = [], []
        for member in range(members):
            out, rest = np.flatnonzero(fold == member), np.flatnonzero(fold != member)
            rows = np.arange(number)
            rows[out] = rng.choice(rest, len(out), replace=False)
            training.append(rows)
            held_out.append(out)
        return cls(tuple(training), tuple(held_out))

    def sharpness(
        self,
        members: Sequence[Posterior],
        network: Network,
        likelihood: Likelihood,
        X: Num[np.ndarray, "n ..."],
        labels: Num[np.ndarray, "n ..."],
        *,
        key: PRNGKeyArray,
    ) -> float:
        """Return the sharpness that suits what each member predicts for its held-out fold."""
        longest = max(map(len, self.held_out))
        probabilities = []
        for member, rows in zip(members, self.held_out, strict=True):
            # repeated up to one length, so that one program serves all members
            predictive = Predictive(member, network, likelihood)
            mean = predictive.predict(X[np.resize(rows, longest)], key=key, draws=DRAWS).mean
            probabilities.append(np.asarray(mean)[: len(rows)])
        held_out = np.concatenate(self.held_out)
        return fit_sharpness(np.concatenate(probabilities), labels[held_out].ravel())


def can_cross_fit(
    classes: int | None,
    X: Num[np.ndarray, "n ..."],
    labels: Num[np.ndarray, "n ..."],
    members: int,
) -> bool:
    """Return whether y is one class label for each row, of several classes, with enough rows and not too many."""
    if classes is None:
        return False
    enough = len(X) >= 2 * max(FOLDS, members) and members * X.size <= MOST_ENTRIES
    return enough and bool((labels != labels[0]).any())
