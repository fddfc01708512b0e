"""Free memory is known or not, and a shortage is put in words."""

import jax
import jax.numpy as jnp
import pytest

from gpvi.parallel import memory


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="accelerators say themselves")
def test_available_memory_is_known_or_not(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    assert memory.available() == 2048
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "absent")
    assert memory.available() is None


@pytest.mark.parametrize(
    ("free", "wanted", "short"),
    [(1_000, 500, False), (1_000, 1_000, False), (1_000, 1_001, True), (1_000, None, False), (None, 9, False)],
)  # fmt: skip
def test_a_shortage_is_told(monkeypatch, free, wanted, short):
    monkeypatch.setattr(memory, "available", lambda: free)
    assert (memory.shortage(wanted) is not None) == short
    if short:
        assert "fewer particles" in str(memory.shortage(wanted))


def test_a_program_needs_its_arguments_and_results():
    x = jnp.ones(1_000, jnp.float32)
    apart = jax.jit(lambda x: x + 1).lower(x).compile()
    in_place = jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile()
    assert memory.needed(apart) == 8_000
    assert memory.needed(in_place) == 4_000
