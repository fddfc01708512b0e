"""What is passed by mistake is refused in one line of this library's own, before anything is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import gpvi
from gpvi import bnn
from gpvi.errors import GPVIError
from gpvi.posterior.history import Training
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine

TARGET = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
LONGEST = 400
"""Letters of a message."""
NETWORK = bnn.mlp((1, 2, 1))
X, Y = np.zeros((3, 1)), np.zeros(3)


@pytest.fixture(scope="module")
def posterior():
    """A Gaussian, untrained."""
    method = gpvi.MeanFieldVI()
    state = method.init(TARGET, method.default_optimizer(1), key=jax.random.key(0))
    start = Start(Affine.identity(2, "float32"), "")
    return gpvi.Posterior.from_training(
        method, TARGET, start, state, Training(1, 1, 0.0, {}), lambda: None
    )


def fit(target=TARGET, method="svgd", **options):
    return gpvi.fit(target, method, **({"key": 0, "steps": 2, "progress": False} | options))


def simulate(key) -> Any:
    return jnp.zeros(2), jnp.zeros(2)


class Unprintable:
    """Something of a user's that fails when it is shown."""

    def __repr__(self):
        raise RuntimeError("not yet")


LONG = 10**5_000
"""It has more digits than Python prints."""
NO_PATHS = [
    "\0",
    "\ud800",
    "~nobody-at-all/x",
    None,
    3,
    b"x",
    "",
    "x" * 5_000,
    1.5,
    [],
    object(),
    Unprintable(),
]
NO_NUMBERS = ["a", -1, 0, 1.5, [1], np.zeros(3), object(), np.nan, np.inf, Unprintable(), -LONG]
NOTHING = ["a", -1, 1.5, object(), np.nan]

MISUSES = {
    "load": (lambda p, v: gpvi.load(v), NO_PATHS),
    "load, classes": (lambda p, v: gpvi.load("x", classes=v), [None, 3, [3], int]),
    "save": (lambda p, v: p.save(v), NO_PATHS),
    "bnn.load": (lambda p, v: bnn.load(v, NETWORK), NO_PATHS),
    "checkpoint": (lambda p, v: fit(checkpoint=v), [v for v in NO_PATHS if v is not None]),
    "stream": (lambda p, v: gpvi.Stream(v), [v for v in NO_PATHS if v != []]),
    "key": (lambda p, v: fit(key=v), [*NO_NUMBERS[:2], *NO_NUMBERS[3:], None, 2**40,
            jax.random.split(jax.random.key(0), 3)]),
    "key of a diagnosis": (lambda p, v: p.diagnose(key=v), ["a", -1, None, True]),
    "number of draws": (lambda p, v: p.sample(v, key=0), [*NO_NUMBERS, 10**30]),
    "number of draws to weigh": (lambda p, v: p.diagnose(draws=v), [*NO_NUMBERS, 99, 10**30]),
    "points": (lambda p, v: p.log_prob(v), ["a", None, object(), 3.0, np.zeros(3), [[1, 2], [3]]]),
    "target of a posterior": (lambda p, v: p.with_target(v), [None, 3, "a", lambda x: x]),
    "steps": (lambda p, v: fit(steps=v), [*NO_NUMBERS, 10**30, LONG]),
    "batch_size": (lambda p, v: fit(batch_size=v), [1, *NO_NUMBERS]),
    "mesh": (lambda p, v: fit(mesh=v), NO_NUMBERS),
    "every": (lambda p, v: fit(checkpoint="x", every=v), NO_NUMBERS),
    "progress": (lambda p, v: fit(progress=v), [None, *NO_NUMBERS]),
    "callbacks": (lambda p, v: fit(callbacks=v), [None, print, *NOTHING]),
    "init": (lambda p, v: fit(init=v), NO_NUMBERS),
    "optimizer": (lambda p, v: fit(optimizer=v), NO_NUMBERS),
    "method": (lambda p, v: fit(method=v), [*NO_NUMBERS, gpvi.SVGD]),
    "exact": (lambda p, v: fit(exact=v), NO_NUMBERS),
    "target": (lambda p, v: fit(target=v), [None, *NO_NUMBERS]),
    "dim": (lambda p, v: gpvi.Target(TARGET.log_density, dim=v), [None, *NO_NUMBERS, 10**30, LONG]),
    "temperature": (lambda p, v: gpvi.Target(simulate, dim=2, temperature=v),
                    ["a", -1, 0, [1], None, np.zeros(3), object(), np.nan, np.inf, 10**400]),
    "dtype": (lambda p, v: gpvi.Target(simulate, dim=2, dtype=v), [*NO_NUMBERS, "float16"]),
    "dtype of a model": (lambda p, v: gpvi.Target.from_numpyro(simulate, dtype=v), NO_NUMBERS),
    "initial": (lambda p, v: gpvi.Target(simulate, dim=2, initial=v),
                [*NO_NUMBERS, [LONG, 1], [1e300, 1.0], [1j, 2], lambda: 1, simulate]),
    "names": (lambda p, v: gpvi.Target(simulate, dim=2, names=v), [*NO_NUMBERS, ["a", "\ud800"]]),
    "a function of names": (lambda p, v: gpvi.Target(simulate, dim=2, names=lambda: v).names,
                            [None, *NO_NUMBERS, ["a"], ["a", "a"]]),
    "log_density": (lambda p, v: gpvi.Target(v, dim=2), [None, *NO_NUMBERS]),
    "log_likelihood": (lambda p, v: gpvi.Target(log_likelihood=v, data=X, dim=2), NO_NUMBERS),
    "data": (lambda p, v: gpvi.Target(log_likelihood=simulate, data=v, dim=2),
             [None, "a", 1.5, object(), [], {}, np.zeros((0, 2)), (X, Y[:2]), np.array(["a"])]),
    "NumPyro model": (lambda p, v: gpvi.Target.from_numpyro(v), [None, *NO_NUMBERS]),
    "supports": (lambda p, v: gpvi.Target.from_supports(simulate, v), [None, *NO_NUMBERS]),
    "targets": (lambda p, v: gpvi.fit_seeds(v, "svgd", key=0), [None, *NO_NUMBERS, TARGET, []]),
    "methods": (lambda p, v: gpvi.compare(TARGET, v, key=0), [None, *NO_NUMBERS, [], {}]),
    "simulator": (lambda p, v: gpvi.sbc(v, simulate, key=0), [None, *NO_NUMBERS]),
    "posterior of a simulation": (lambda p, v: gpvi.sbc(simulate, v, key=0), [None, *NO_NUMBERS]),
    "widths": (lambda p, v: bnn.mlp(v), [None, *NO_NUMBERS, (1, 2.5), "ab"]),
    "network": (lambda p, v: bnn.fit(v, "gaussian", X, Y, key=0), [None, *NO_NUMBERS]),
    "likelihood": (lambda p, v: bnn.fit(NETWORK, v, X, Y, key=0), [None, *NO_NUMBERS]),
    "inputs": (lambda p, v: bnn.fit(NETWORK, "gaussian", v, Y, key=0), [None, *NO_NUMBERS]),
    "outputs": (lambda p, v: bnn.fit(NETWORK, "gaussian", X, v, key=0),
                [None, "a", 1.5, [1], object(), np.nan, X[:2], ["a", "b", "c"]]),
    "prior": (lambda p, v: bnn.fit(NETWORK, "gaussian", X, Y, key=0, prior=v), [None, *NO_NUMBERS]),
    "members": (lambda p, v: bnn.fit(NETWORK, "gaussian", X, Y, key=0, members=v),
                [None, *NO_NUMBERS]),
    "particles": (lambda p, v: gpvi.SVGD(particles=v), [None, *NO_NUMBERS, 10**30, LONG]),
    "chains": (lambda p, v: gpvi.HMC(chains=v), [None, *NO_NUMBERS, 10**30, LONG]),
    "generator": (lambda p, v: gpvi.GPVI(generator=v), [None, *NO_NUMBERS]),
    "learning rate": (lambda p, v: gpvi.GPVI(learning_rate=v),
                      ["a", -1, 0, [1], np.nan, np.inf, 10**400]),
}  # fmt: skip


@pytest.mark.parametrize("what", MISUSES)
def test_a_mistake_is_told_in_one_line(what, posterior, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users run without it
    call, mistakes = MISUSES[what]
    for mistake in mistakes:
        with pytest.raises(GPVIError) as told:
            call(posterior, mistake)
        said = str(told.value)
        assert said and "\n" not in said and len(said) < LONGEST, (mistake, said)
    assert not [path for path in tmp_path.iterdir() if path.name != "x"]
