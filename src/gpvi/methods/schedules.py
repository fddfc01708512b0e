"""Optimisers with the learning-rate schedule that every trained method uses by default.

At a constant learning rate every method stays at a noise floor, so the rate decays to zero.
"""

import functools
import itertools

import optax

OPTIMIZERS = {"adam": optax.adam, "rmsprop": optax.rmsprop}


@functools.lru_cache(maxsize=64)
def decaying(algorithm: str, learning_rate: float, *rounds: int) -> optax.GradientTransformation:
    """Make an optimiser whose rate warms up briefly and then decays to zero along a cosine, once in each round.

    Equal arguments give the same object, so that a program compiled for one run serves the next.

    Parameters
    ----------
    algorithm
        A name in `OPTIMIZERS`: "adam" or "rmsprop".
    learning_rate
        The largest rate, reached after a fiftieth of each round.
    *rounds
        The number of steps of each round.

    Returns
    -------
    optax.GradientTransformation
        The optimiser.

    Examples
    --------
    >>> optimizer = gpvi.methods.decaying("rmsprop", 0.01, 500, 1000)
    >>> optimizer is gpvi.methods.decaying("rmsprop", 0.01, 500, 1000)
    True
    """

    def schedule(steps: int) -> optax.Schedule:
        warm_up = max(1, steps // 50)
        length = max(steps, warm_up + 1)
        first = learning_rate / (warm_up + 1)
        return optax.warmup_cosine_decay_schedule(first, learning_rate, warm_up, length)

    ends = list(itertools.accumulate(rounds))
    return OPTIMIZERS[algorithm](optax.join_schedules([schedule(r) for r in rounds], ends[:-1]))


def decaying_adam(learning_rate: float, *rounds: int) -> optax.GradientTransformation:
    """Make Adam with the schedule of `decaying`.

    Parameters
    ----------
    learning_rate
        The largest rate.
    *rounds
        The number of steps of each round.

    Returns
    -------
    optax.GradientTransformation
        The optimiser.

    Examples
    --------
    >>> state = gpvi.methods.decaying_adam(0.01, 500).init(jnp.zeros(3))
    """
    return decaying("adam", learning_rate, *rounds)
