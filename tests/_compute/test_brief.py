"""Brief programs give what their functions give, wherever they are called; only small ones are compiled in haste."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi._compute import brief as module
from gpvi._compute.brief import brief


@brief
def scaled(x, factor, unit="m"):
    return {"value": factor * jnp.sin(x), "unit": unit}


@brief(calls=1)
def turned(x, rounds):
    """As many turns by 0.1 as `rounds` says, in a loop whose length the program does not know."""
    return jax.lax.fori_loop(0, rounds, lambda _, x: x + 0.1 * jnp.cos(x), x)


X = jnp.linspace(-1.0, 1.0, 7)


def test_arrays_and_everything_else_come_back():
    made = scaled(X, 2.0)
    assert made["unit"] == "m" and scaled(X, 2.0, unit="km")["unit"] == "km"
    np.testing.assert_allclose(made["value"], 2 * np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(scaled(np.asarray(X), 3)["value"], 3 * np.sin(X), rtol=1e-6)


def test_it_can_be_part_of_another_program():
    def total(x):
        return scaled(x, 2.0)["value"].sum()

    expected = 2 * np.cos(X)
    for program in (jax.grad(total), jax.jit(jax.grad(total)), jax.vmap(jax.grad(total))):
        np.testing.assert_allclose(program(X), expected, rtol=1e-5)
    constant = jax.jit(
        lambda y: y + scaled(X, 2.0)["value"]
    )  # called inside, but not on what is traced
    np.testing.assert_allclose(constant(X), X + 2 * np.sin(X), rtol=1e-6)


def test_it_is_traced_once_for_each_form():
    traced = []

    @brief
    def counted(x, name):
        traced.append(name)
        return x + 1

    for x in (X, 2 * X, X[:3], X):
        counted(x, "a")
    assert traced == ["a", "a"]  # seven numbers and three
    counted(X, "b")
    assert traced == ["a", "a", "b"]


class TestHaste:
    @pytest.fixture
    def unknown(self, monkeypatch):
        """Options that no compiler has: haste is then an error, unless somebody asks first."""
        monkeypatch.setattr(module, "HASTY", {"xla_no_such_option": True})
        known = module._options_are_known
        known.cache_clear()
        yield
        known.cache_clear()

    def test_a_compiler_without_the_options_is_not_given_them(self, unknown):
        np.testing.assert_allclose(brief(lambda x: x + 1)(X), X + 1)

    @pytest.mark.skipif(jax.default_backend() != "cpu", reason="the options are for CPUs")
    def test_programs_of_many_operations_are_compiled_well(self, unknown, monkeypatch):
        monkeypatch.setattr(module, "_options_are_known", lambda: True)
        once = module._operations(jax.jit(jnp.cos).trace(X))
        monkeypatch.setattr(module, "MOST_OPERATIONS", 3 * once)
        with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
            brief(calls=3)(jnp.cos)(X)
        np.testing.assert_allclose(brief(calls=4)(jnp.cos)(X), np.cos(X), rtol=1e-6)

    def test_loops_of_unknown_length_count(self):
        known = jax.jit(lambda x: jax.lax.fori_loop(0, module.ROUNDS, lambda _, x: jnp.cos(x), x))
        unknown = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: jnp.cos(x), x))
        one, other = known.trace(X), unknown.trace(X, jnp.asarray(3))
        assert module._operations(other) == pytest.approx(module._operations(one), rel=0.5)
        np.testing.assert_allclose(
            turned(X, jnp.asarray(2)), turned(turned(X, jnp.asarray(1)), jnp.asarray(1))
        )
