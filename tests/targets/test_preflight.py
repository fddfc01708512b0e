"""A look before training: each trouble is found, named and nothing else is, and sound log-densities pass."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi import Target
from gpvi.targets.preflight._checks import _cure
from selection import slow

STATE = np.random.default_rng(0)
WEIGHTS = np.linspace(1, 3, 1_200)
DATA = {"x": np.arange(20.0)}


def normal(x):
    return -(x @ x) / 2


def correlated(x):
    return -1e4 * (x[0] - x[1]) ** 2 - (x[0] + x[1]) ** 2 / 8


def student(x):
    return -2 * jnp.log1p(x @ x)


def far_modes(x):
    """The start lies in the valley between two modes, 900 of its scales away from either."""
    return jnp.logaddexp(-((x[0] - 30) ** 2) / 2, -((x[0] + 30) ** 2) / 2) - x[1] ** 2 / 2


@pytest.mark.parametrize(
    "log_density", [normal, correlated, student, far_modes], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sound_log_densities_pass(log_density, dtype):
    seen = Target(log_density, dim=2, initial=[0.3, 0.2], dtype=dtype).debug()
    assert seen.ok
    assert seen.findings == ()
    assert "no problems found" in str(seen)


def test_what_it_measures():
    """For −x²/2s² the scale is s, the gradient −x/s², wherever the start is."""
    scales = np.array([0.1, 1.0, 30.0])
    start = np.array([0.2, -1.0, 3.0])
    target = Target(
        lambda x: -jnp.sum((x / scales) ** 2) / 2, dim=3, initial=start, names=("a", "b", "c")
    )
    seen = target.debug()
    assert seen.scale is not None
    assert seen.gradient is not None
    np.testing.assert_allclose(seen.scale, scales, rtol=1e-4)
    np.testing.assert_allclose(seen.gradient, -start / scales**2, rtol=1e-4)
    assert seen.value == pytest.approx(-((start / scales) ** 2).sum() / 2, rel=1e-5)
    table = str(seen)
    for entry in ("R^3", "float32", "coordinate", "scale", "-20", "30"):
        assert entry in table


def test_many_dimensions():
    """Scales beyond a thousand coordinates are estimated; a diagonal Hessian makes the estimate exact."""
    seen = Target(lambda x: -(x * WEIGHTS) @ x / 2, dim=1_200).debug()
    assert seen.ok
    assert seen.scale is not None
    np.testing.assert_allclose(seen.scale, WEIGHTS**-0.5, rtol=1e-4)
    assert len(str(seen).splitlines()) < 20


def rounded(x):
    return -(x[0] ** 2) - jnp.round(3 * x[1]) ** 2


def printing(x):
    jax.debug.callback(lambda _: None, x[0])
    return normal(x)


TROUBLES = {
    "a python number": (lambda x: float(x[0]), "error", "traced value.*jax.numpy instead of"),
    "a branch": (lambda x: normal(x) if x[0] > 0 else -normal(x), "error", "jax.lax.cond instead"),
    "numpy": (lambda x: -np.sum(np.asarray(x)), "error", "traced value into a NumPy array"),
    "another length": (lambda x: -(x @ jnp.ones(3)), "error", r"fails on a vector of shape \(2,\)"),
    "an index too far": (lambda x: normal(x) + x[2], "error", "reads coordinate 2 .*Check dim=2"),
    "a vector": (
        lambda x: -(x**2),
        "error",
        r"returns \(2,\) at one point; it must return a scalar",
    ),
    "an integer": (lambda x: (x @ x).astype(int), "error", "returns dtype int"),
    "half precision": (lambda x: normal(x.astype(jnp.float16)), "warning", "is float16"),
    "randomness": (lambda x: normal(x) + STATE.standard_normal(), "error", "two calls at the same"),
    "a callback": (printing, "note", "has side effects"),
    "log of zero": (lambda x: jnp.log(x[0] - x[0]), "error", "log p is -inf at the start"),
    "a kink": (lambda x: -jnp.sqrt((x[1] - 0.2) ** 2), "error", r"not finite in x\[1\].*jnp.where"),
    "a range": (
        lambda x: normal(x) + jnp.log(x[0]),
        "warning",
        r"not finite at .*related to x\[0\].*sigmoid",
    ),
    "an unused coordinate": (lambda x: -(x[0] ** 2), "error", r"zero everywhere in x\[1\]"),
    "rounding": (rounded, "error", r"zero everywhere in x\[1\].*uses round"),
    "a ridge": (
        lambda x: -((x[0] + 2 * x[1]) ** 2),
        "error",
        r"\+1·x\[0\] -0.5·x\[1\]|-1·x\[0\] \+0.5",
    ),
    "a missing prior": (lambda x: -jnp.exp(x[0]) - x[1] ** 2, "warning", r"not fall.* −x\[0\]"),
    "an explosion": (lambda x: x[0] ** 2 - x[1] ** 2, "warning", r"along \+x\[0\], −x\[0\] The"),
    "a flipped sign": (
        lambda x: (x @ x) / 2,
        "error",
        "grows without bound.*as if its sign were flipped",
    ),
    "a flipped overflow": (lambda x: jnp.cosh(x).sum(), "error", "as if its sign were flipped"),
    "a large constant": (lambda x: normal(x) - 1e7, "warning", "resolves to ±1.2"),
    "scales": (lambda x: -((1e4 * x[0]) ** 2) - x[1] ** 2, "note", r"scales differ by 1e\+04"),
    "a stopped gradient": (
        lambda x: -((x[0] - 3) ** 2) - 8 * jax.lax.stop_gradient(x[1]) * x[0] - x[1] ** 2,
        "warning",
        "its gradient predicts.*stop_gradient",
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_troubles(name):
    log_density, level, message = TROUBLES[name]
    with jax.enable_x64(False):
        seen = Target(log_density, dim=2, initial=[0.3, 0.2]).debug()
    found = [
        f
        for f in seen.findings
        if f.level == level and re.search(message, " ".join(str(f).split()))
    ]
    assert found, str(seen)
    assert seen.ok == (level != "error")
    assert str(found[0]) in str(seen)


def banana(x):
    return -((x[0] / 2) ** 2) / 2 - ((x[1] - x[0] ** 2 / 4) / 0.5) ** 2 / 2


def test_a_bend_at_the_mode_is_no_fault_and_a_hidden_slope_is_one(getkey):
    """Where the gradient is nothing, so that log p changes by terms of third order."""
    bent = Target(banana, dim=2)
    for _ in range(3):
        assert bent.debug(key=getkey()).findings == ()
    hidden = Target(lambda x: banana(x) - 0.1 * jax.lax.stop_gradient(x[0]), dim=2)
    assert "its gradient predicts 0" in str(hidden.debug(key=getkey()))


@pytest.mark.parametrize(
    ("log_likelihood", "message"),
    [
        (lambda w, b: jnp.mean(-((w[0] - b["x"]) ** 2)), "a mean over the batch"),
        (
            lambda w, b: jnp.sum(-((w[0] - b["x"]) ** 2)) - w @ w - 3,
            "not a sum over data.*log_prior",
        ),
        (lambda w, b: -((w[0] + b["x"][:, None] - b["x"]) ** 2), r"shape \(20, 20\) for 20 data"),
        (lambda w, b: jnp.sum(-((w[0] - b["x"]) ** 2)), None),
        (lambda w, b: -((w[0] - b["x"]) ** 2), None),
    ],
    ids=["mean", "with prior", "pairs", "sum", "each"],
)
def test_likelihoods_of_batches(log_likelihood, message):
    seen = Target(log_likelihood=log_likelihood, data=DATA, dim=1).debug()
    assert seen.ok == (message is None)
    assert "20 data" in str(seen)
    if message is not None:
        assert re.search(message, str(seen).replace("\n", " "))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(5, dtype=np.uint8), r"data\['n'\] is uint8.*beyond 255"),
        (np.array([3, 2**25 + 1]), r"data\['n'\] reaches 33554433, which float32 cannot represent"),
    ],
)
def test_integers_that_overflow(values, message):
    target = Target(
        log_likelihood=lambda w, b: -((w[0] - b["n"] * 1e-7) ** 2), data={"n": values}, dim=1
    )
    assert re.search(message, str(target.debug()))


def test_the_key_moves_the_points():
    """A log-density that fails only far away on one side is seen with any key."""
    target = Target(lambda x: normal(x) + jnp.log(x[0] + 5), dim=2)
    for seed in range(2):
        seen = target.debug(key=jax.random.key(seed))
        assert seen.ok
        assert [f.level for f in seen.findings] == ["note"]


def gammas(shape):
    def model():
        import numpyro
        import numpyro.distributions as dist

        numpyro.sample("rate", dist.Gamma(shape, 1.0))

    return model


@pytest.mark.parametrize(
    ("dtype", "finite", "message"),
    [
        ("float32", [True, True], "in float64 all is finite: use dtype='float64'"),
        ("float32", [True, False], "in float64 it is finite at 50% of these points"),
        ("float32", [False, False], "float64 is no cure"),
        ("float32", None, "try dtype='float64'"),
        ("float64", [True, True], "float64 is no cure"),
    ],
)
def test_the_remedy_depends_on_what_float64_gives(dtype, finite, message):
    values = None if finite is None else np.array(finite)
    assert message in _cure(np.zeros((2, 1)), np.dtype(dtype), lambda points: values)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        (
            0.2,
            "float32",
            "underflow or overflow in float32; in float64 all is finite: use dtype='float64'",
        ),
        slow(0.1, "float32", r"finite at \d\d% of these points: use dtype='float64'"),
        slow(0.1, "float64", "unconstrained already, and float64 is no cure"),
    ],
)
def test_coordinates_that_numpyro_has_transformed(shape, dtype, message):
    """θ = exp(u) underflows; another transformation would not help, another precision may."""
    pytest.importorskip("numpyro")
    said = " ".join(str(Target.from_numpyro(gammas(shape), dtype=dtype).debug()).split())
    assert "not finite at" in said
    assert re.search(message, said), said
    assert "sigmoid" not in said
