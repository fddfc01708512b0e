"""Operations are counted as traced: products, numbers read or written, loops and branches."""

import jax
import jax.numpy as jnp
import numpy as np

from gpvi._compute.operation_counts import LEAST, operations


def vector(n):
    return jax.ShapeDtypeStruct((n,), np.float32)


def matrix(n, m):
    return jax.ShapeDtypeStruct((n, m), np.float32)


def gaussian(x):
    return -0.5 * (x**2).sum()


def costly(x):
    """A Gaussian, and next to nothing from a product of matrices that takes 2 · 100³ operations."""
    product = jnp.cos(x[0] + jnp.arange(10_000.0).reshape(100, 100)) @ jnp.eye(100)
    return gaussian(x) + 1e-9 * jnp.sin(product).sum()


class TestCounts:
    def test_products_and_factorisations(self):
        assert operations(jnp.matmul, matrix(30, 40), matrix(40, 50)) == 2 * 30 * 40 * 50
        batched = jax.vmap(jnp.matmul)
        each = jax.ShapeDtypeStruct((7, 20, 20), np.float32)
        assert operations(batched, each, each) == 7 * 2 * 20**3
        factor = operations(lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False), each)
        assert 7 * 20**3 / 3 <= factor < 2 * 7 * 20**3 / 3
        solve = operations(
            lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True),
            matrix(20, 20),
            matrix(20, 3),
        )
        assert solve == 20 * 20 * 3

    def test_numbers_read_or_written(self):
        assert operations(jnp.exp, vector(1_000)) == 1_000
        assert operations(lambda x: x[:20], vector(100_000)) < 1_000
        assert operations(lambda x: jax.lax.reduce_sum(x, (0,)), vector(1_000)) == 1_000
        assert operations(jnp.exp, vector(1)) == LEAST

    def test_loops_of_known_length_count_each_turn(self):
        def repeated(length):
            def turn(x, _):
                return jnp.sin(x), None

            return lambda x: jax.lax.scan(turn, x, None, length=length)[0]

        assert operations(repeated(300), vector(50)) == 300 * 50

    def test_loops_of_unknown_length_count_once(self):
        def halved(x):
            return jax.lax.while_loop(lambda x: x[0] > 1, lambda x: x / 2, x)

        assert 50 <= operations(halved, vector(50)) < 200

    def test_the_longer_branch_counts_and_what_is_compiled_apart(self):
        def either(x):
            inner = jax.jit(lambda x: jnp.sin(jnp.cos(x)))
            return jax.lax.cond(x[0] > 0, inner, jnp.sin, x)

        assert 2_000 <= operations(either, vector(1_000)) < 2_100

    def test_gradients_count(self):
        value = operations(costly, vector(2))
        assert value > 2 * 100**3
        assert operations(jax.value_and_grad(costly), vector(2)) > 1.5 * value
