"""Training says where it cannot run: inside JAX's transformations, and where a fork has lost JAX's threads."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import NotAvailableError

KEY = jax.random.key(0)
TARGET = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
HANGS = 120


def mean(key):
    method = gpvi.SVGD(particles=4)
    found = gpvi.fit(TARGET, method, key=key, steps=2, init=None, progress=False)
    return jnp.asarray(found.particles).mean()


def seeds(key):
    method = gpvi.SVGD(particles=4)
    [found] = gpvi.fit_seeds([TARGET], method, key=key, steps=2, init=None, progress=False)
    return jnp.asarray(found.particles).mean()


def networks(key):
    network = gpvi.bnn.mlp((1, 2, 1))
    data = np.zeros((3, 1))
    found = gpvi.bnn.fit(network, "gaussian", data, data[:, 0], key=key, steps=2, progress=False)
    return jnp.asarray(found.predict(data, key=KEY).mean).mean()


@pytest.mark.parametrize("function", [mean, seeds, networks])
@pytest.mark.parametrize(
    "inside",
    [
        lambda f: jax.jit(f)(KEY),
        lambda f: jax.jit(lambda: f(KEY))(),
        lambda f: jax.vmap(f)(jax.random.split(KEY, 2)),
    ],
    ids=["jit", "jit without arguments", "vmap"],
)
def test_training_inside_a_transformation_is_refused(function, inside):
    with pytest.raises(NotAvailableError, match=r"fit.* cannot run inside jax.jit, vmap or grad"):
        inside(function)


FORK = textwrap.dedent("""
    import os, sys
    import jax, jax.numpy as jnp
    import gpvi

    def things():
        return gpvi.Target(lambda x: -0.5 * x @ x, dim=2), jax.random.key(0)

    made = things() if sys.argv[1] == "used" else None
    child = os.fork()
    if child == 0:
        try:
            target, key = made or things()
            gpvi.fit(target, gpvi.SVGD(particles=4), key=key, steps=2, init=None, progress=False)
            print("trained", flush=True)
        except gpvi.errors.NotAvailableError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    ("jax_was", "said"), [("used", "forked from one that had used JAX"), ("unused", "trained")]
)
def test_a_forked_child_says_that_it_cannot_train(jax_was, said):
    """It would hang. A child of a process that has not used JAX yet can train."""
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, jax_was],
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=True,
    )
    assert said in output.stdout, output.stderr
