"""Inverses against double precision, what a GPU would be given, and derivatives."""

from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpvi._compute import gauss_jordan, inverses
from gpvi._compute.inverses import inverse, log_det, solve_transposed
from gpvi.generators import Residual
from gpvi.methods import GPVI
from gpvi.targets.target import Target
from selection import slow


def blocks(condition: float, n: int = 3, k: int = 32) -> np.ndarray:
    """Blocks whose singular values go down to 1/condition."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, k, k)))[0] for _ in range(2))
    values = np.concatenate([np.linspace(1, 0.2, k - 4), np.geomspace(0.1, 1 / condition, 4)])
    return (left * values @ right).astype(np.float32)


def by_exchanges(a: np.ndarray) -> jax.Array:
    """Inverses by the kernels, run as plain JAX."""
    identity = jnp.eye(a.shape[-1], dtype=a.dtype)
    return jax.jit(jax.vmap(lambda a: gauss_jordan.solve_transposed(a, identity, interpret=True)))(
        a
    )


def error(a: np.ndarray, x: jax.Array) -> float:
    """The largest ‖I − AX‖."""
    left = np.eye(a.shape[-1]) - a.astype(np.float64) @ np.asarray(x, np.float64)
    return float(np.linalg.norm(left, axis=(1, 2)).max())


@pytest.mark.parametrize("k", [5, 32, 100])
def test_exchanges_invert_as_factors_do(k):
    """Blocks near a permutation, which need every pivot looked for."""
    rng = np.random.default_rng(k)
    a = (np.eye(k)[rng.permutation(k)] + 0.3 * rng.standard_normal((2, k, k))).astype(np.float32)
    x = by_exchanges(a)
    assert error(a, x) < 4 * error(a, jnp.linalg.inv(a))


@pytest.mark.parametrize(("k", "kernels"), [(3, 1), (64, 1), (65, 4), slow(512, 16), (513, 0)])
def test_blocks_are_inverted_by_kernels_on_a_gpu(monkeypatch, k, kernels):
    """What JAX would hand to an NVIDIA GPU, were there one."""
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    program = jax.jit(jax.vmap(inverse)).trace(jnp.zeros((2, k, k)))
    text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == kernels
    assert ("getrf" in text) == (k > inverses.LARGEST)


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
    assert inverses.takes_kernels(jnp.eye(2)) == takes


@pytest.mark.parametrize("k", [32, 100])
@pytest.mark.parametrize("condition", [10, 1e4])
def test_exchanges_are_as_exact_as_rounding_allows(k, condition):
    a = blocks(condition, k=k)
    x = by_exchanges(a)
    assert error(a, x) < 4 * np.finfo(np.float32).eps * condition * np.sqrt(k)


def test_what_is_singular_or_not_finite_has_no_inverse():
    a = np.stack([np.zeros((32, 32)), blocks(10)[0]]).astype(np.float32)
    a[1, 0, 0] = np.nan
    x = by_exchanges(a)
    assert not np.isfinite(x).all((1, 2)).any()


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
    v = jnp.asarray(np.random.default_rng(1).standard_normal((2, 5)))
    for f in (
        lambda a: solve_transposed(a, v),
        lambda a: solve_transposed(a, v @ a),
        jax.grad(lambda a: (solve_transposed(a, v) ** 2).sum()),
    ):
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
