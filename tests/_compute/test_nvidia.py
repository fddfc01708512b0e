"""What XLA is told where there is one NVIDIA GPU, and only there."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from gpvi import GPVI, Target, fit
from gpvi._compute import nvidia


@pytest.fixture
def one_gpu(monkeypatch):
    """As JAX would show it."""
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.mark.parametrize(
    ("capability", "number", "generation"),
    [("9.0", 1, 9), ("10.0", 1, 10), ("7.5", 1, 7), ("9.0", 2, 0), ("gfx90a", 1, 0), (None, 1, 0)],
)
def test_the_generation_is_that_of_the_only_device(monkeypatch, capability, number, generation):
    attributes = {} if capability is None else {"compute_capability": capability}
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(**attributes)] * number)
    monkeypatch.setattr(jax, "device_count", lambda: number)
    assert nvidia.generation() == generation


def test_xla_is_told_nothing_on_a_cpu():
    assert nvidia.compiler_options() == {}


def test_what_xla_is_told_is_something_that_it_knows(one_gpu):
    options = nvidia.compiler_options()
    assert options
    assert jax.jit(jnp.negative, compiler_options=options)(1.0) == -1.0


def test_who_sets_the_option_is_heard(one_gpu, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{nvidia.SCHEDULING}=SERIALIZE")
    assert nvidia.compiler_options() == {}


def test_an_option_that_xla_no_longer_has_is_left_out(one_gpu, monkeypatch):
    monkeypatch.setattr(nvidia, "SCHEDULING", "xla_gpu_of_another_day")
    assert nvidia.compiler_options() == {}


def test_a_chunk_is_compiled_with_the_options(monkeypatch):
    """An option that XLA does not know stops the compiler, so that it must have arrived."""
    target = Target(lambda x: -0.5 * x @ x, dim=3)
    fit(target, GPVI(), key=jax.random.key(0), steps=3, init=None, progress=False)
    monkeypatch.setattr(nvidia, "compiler_options", lambda: {"xla_gpu_of_another_day": "1"})
    other = Target(lambda x: -x @ x, dim=3)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_of_another_day"):
        fit(other, GPVI(), key=jax.random.key(0), steps=3, init=None, progress=False)
