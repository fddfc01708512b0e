"""Inverses by products of matrices against double precision, what they say of themselves, and their derivatives."""

from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpvi import gauss_jordan, inverses
from gpvi.generators import Residual
from gpvi.inverses import EFFORTS, Effort, inverse, log_det, newton, scalings
from gpvi.methods import GPVI
from gpvi.target import Target


def blocks(condition: float, n: int = 3, k: int = 32) -> np.ndarray:
    """Blocks whose singular values go down to 1/condition."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, k, k)))[0] for _ in range(2))
    values = np.concatenate([np.linspace(1, 0.2, k - 4), np.geomspace(0.1, 1 / condition, 4)])
    return (left * values @ right).astype(np.float32)


def error(a: np.ndarray, x: jax.Array) -> float:
    """The largest ‖I − AX‖."""
    left = np.eye(a.shape[-1]) - a.astype(np.float64) @ np.asarray(x, np.float64)
    return float(np.linalg.norm(left, axis=(1, 2)).max())


@pytest.fixture(scope="module")
def by_products():
    """Each effort alone, and what is made of all."""

    @jax.jit
    @jax.vmap
    def run(a):
        return newton(a, EFFORTS[0]), newton(a, EFFORTS[1]), inverses._by_products(a)

    return run


@pytest.mark.parametrize(
    ("condition", "first", "second"),
    [(10, True, True), (100, True, True), (1e4, False, True), (1e7, False, False)],
)
def test_what_converged_is_exact_and_what_did_not_is_told(by_products, condition, first, second):
    a = blocks(condition)
    found = by_products(a)
    rounding = 4 * np.finfo(np.float32).eps * condition * np.sqrt(a.shape[-1])
    for (x, unsolved), converged in zip(found[:2], (first, second), strict=True):
        assert not unsolved.any() if converged else unsolved.all()
        if converged:
            assert error(a, x) < rounding
    assert error(a, found[2]) < rounding


@pytest.mark.parametrize("k", [5, 32])
def test_exchanges_invert_as_factors_do(k):
    """The kernel, run as plain JAX: blocks near a permutation need every pivot looked for, 5 are padded to 16."""
    rng = np.random.default_rng(k)
    a = (np.eye(k)[rng.permutation(k)] + 0.3 * rng.standard_normal((2, k, k))).astype(np.float32)
    x = jax.jit(jax.vmap(lambda a: gauss_jordan.inverse(a, interpret=True)))(a)
    assert error(a, x) < 4 * error(a, jnp.linalg.inv(a))


@pytest.mark.parametrize(("k", "kernels"), [(3, 1), (64, 1), (65, 0), (128, 0)])
def test_small_blocks_are_one_kernel_on_a_gpu(monkeypatch, k, kernels):
    """What JAX would hand to an NVIDIA GPU, were there one."""
    assert not inverses.takes_kernels()
    monkeypatch.setattr(inverses, "takes_kernels", lambda: True)
    program = jax.jit(jax.vmap(inverses.on_an_accelerator)).trace(jnp.zeros((2, k, k)))
    text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == kernels
    assert ("getrf" in text) == (k > inverses.SMALL)


@pytest.mark.parametrize(
    ("capability", "number", "takes"),
    [
        ("9.0", 1, True),
        ("10.0", 1, True),
        ("7.5", 1, False),
        ("9.0", 2, False),
        ("gfx90a", 1, False),
    ],
)
def test_the_kernel_is_for_one_recent_gpu(monkeypatch, capability, number, takes):
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda: [device] * number)
    monkeypatch.setattr(jax, "device_count", lambda: number)
    assert inverses.takes_kernels() == takes


def test_only_blocks_that_need_it_are_done_again(by_products):
    easy, hard = blocks(10)[:1], blocks(1e4)[:1]
    both = by_products(np.concatenate([easy, hard]))
    np.testing.assert_array_equal(both[2][0], both[0][0][0])
    np.testing.assert_array_equal(both[2][1], both[1][0][1])


def test_what_is_not_finite_is_unsolved():
    a = jnp.asarray(blocks(10)[0]).at[0, 0].set(jnp.nan)
    assert jax.jit(lambda a: newton(a, EFFORTS[0])[1])(a)


@pytest.mark.parametrize("effort", EFFORTS)
def test_the_schedule_contracts_all_it_is_made_for(effort: Effort):
    """In exact arithmetic: eigenvalues of XA from the lowest to 1, pass by pass."""
    values = np.geomspace(effort.lowest, 1, 2_001)
    for alpha in scalings(effort):
        values = 1 - (1 - alpha * values) ** 2
        assert values.min() > 0 and values.max() <= 1
    assert np.abs(1 - values).max() < 1e-5


def test_derivatives():
    with jax.enable_x64(True):
        check_derivatives()


def check_derivatives():
    a, moved = np.random.default_rng(0).standard_normal((2, 5, 5))
    a += 3 * np.eye(5)

    def along(f):
        _, tangent = jax.jvp(f, (jnp.asarray(a),), (jnp.asarray(moved),))
        step = 1e-6
        return tangent, (f(jnp.asarray(a + step * moved)) - f(jnp.asarray(a - step * moved))) / (
            2 * step
        )

    for f in (inverse, lambda a: log_det(a)[1], jax.grad(lambda a: log_det(a)[1])):
        found, expected = along(f)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    sign, value = log_det(jnp.asarray(-a))
    np.testing.assert_allclose((sign, value), np.linalg.slogdet(-a), rtol=1e-12)


def test_a_step_factors_each_block_once():
    """The entropy term and the gradient of learned scales share the inverse of A."""
    generator = Residual(latent=3, hidden=(4,), learn_scale=True)
    method, optimizer = GPVI(generator, "functional", particles=4), optax.sgd(0.1)
    target, key = Target(lambda x: -0.5 * (x**2).sum(), dim=5), jax.random.key(0)
    state = method.init(target, optimizer, key=key)
    program: Any = eqx.filter_jit(
        lambda state: method.step(target, optimizer, state, None, key=key)
    )
    assert program.lower(state).as_text().count("@lapack_sgetrf_ffi") == 1
