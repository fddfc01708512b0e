r"""How sure a mixture of networks should be, by labels that its members have not seen at first.

A generator is wider than the posterior it fits, and on easy data the average over its networks says 0.9 where it is
always right. Training labels cannot tell by how much: those of pure noise are fitted, too. So, for the first half of
the steps, the m-th member does not see the m-th of K parts of the data, and its predictions p_m there are honest. The
exponent s (see `gpvi.bnn.prediction.temperature_scaling`) maximises

    Σ_m Σ_{i in part m} log p_m(y_i | x_i)^s / Σ_c p_m(c | x_i)^s  +  log p(s),

and for the other half all members see all data, so that nothing is lost but the rows a member could have learned from
earlier, and no step is added. What is left out of a member's data is filled up from the rest of them: the likelihood
weighs as much as in the second half, and one compiled program serves both.

s errs towards caution: a member that lacks a part of the data is wrong more often than the mixture of all, and surer of
it, since an average over several is less sure than each. Its prior keeps it near 1 where labels are few.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, Num, PRNGKeyArray, Shaped

from gpvi.bnn.likelihoods import Bernoulli, Categorical, Likelihood
from gpvi.bnn.networks.network import Network
from gpvi.bnn.prediction.predictive import Predictive
from gpvi.bnn.prediction.temperature_scaling import sharpness
from gpvi.posterior.posterior import Posterior

PARTS = 5
"""K, unless there are more members than that."""
ENTRIES = 2**27
"""Numbers in X beyond which no part is left out, since each member then needs its own copy; s is 1."""
DRAWS = 256
"""Networks of a member that predict what it has not seen."""


class Crossing(NamedTuple):
    """Which rows each member sees, n of them with repetitions, and which it does not."""

    seen: tuple[Int[np.ndarray, " n"], ...]
    unseen: tuple[Int[np.ndarray, " u"], ...]

    @classmethod
    def of(
        cls, labels: Shaped[np.ndarray, "n ..."], members: int, *, key: PRNGKeyArray
    ) -> "Crossing":
        """Random parts with as many rows of each class, give or take one."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        number = len(labels)
        part = np.empty(number, int)
        by_class = np.lexsort((rng.random(number), labels.reshape(number)))
        part[by_class] = np.arange(number) % max(PARTS, members)
        seen, unseen = [], []
        for member in range(members):
            out, rest = np.flatnonzero(part == member), np.flatnonzero(part != member)
            rows = np.arange(number)
            rows[out] = rng.choice(rest, len(out), replace=False)
            seen.append(rows)
            unseen.append(out)
        return cls(tuple(seen), tuple(unseen))

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
        """s, by what members that were trained on the rows they see predict for the others."""
        most = max(map(len, self.unseen))
        found = []
        for member, rows in zip(members, self.unseen, strict=True):
            # filled up to one length, so that one program serves all
            predictive = Predictive(member, network, likelihood)
            mean = predictive.predict(X[np.resize(rows, most)], key=key, draws=DRAWS).mean
            found.append(np.asarray(mean)[: len(rows)])
        return sharpness(np.concatenate(found), labels[np.concatenate(self.unseen)].ravel())


def can_cross(
    likelihood: Likelihood,
    X: Num[np.ndarray, "n ..."],
    labels: Num[np.ndarray, "n ..."],
    members: int,
) -> bool:
    """Whether y is one label of each row, of several; with rows enough to leave some out, and not too many to copy."""
    if not isinstance(likelihood, Categorical | Bernoulli) or labels.size != len(labels):
        return False
    enough = len(X) >= 2 * max(PARTS, members) and members * X.size <= ENTRIES
    return enough and bool((labels != labels[0]).any())
