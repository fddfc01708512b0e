"""Bytes, operations and exponents of growth, by hand and by the compiler."""

import jax
import jax.numpy as jnp
import pytest

from gpvi_paper.bench import counting
from gpvi_paper.bench.exponents import exponent, last_exponent
from gpvi_paper.bench.limits.roofline import LENET5, SMALL_CONVOLUTIONAL


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_exponents_of_made_up_costs(power):
    sizes = (10, 100, 1_000, 10_000)
    assert exponent(sizes, [3 * s**power for s in sizes]) == pytest.approx(power)


def test_a_constant_beside_it_lowers_the_exponent_and_the_last_one_least():
    sizes = (10, 100, 1_000, 10_000)
    costs = [100 + s for s in sizes]
    assert exponent(sizes, costs) < last_exponent(sizes, costs) < 1


def test_the_least_bytes_and_sums_by_hand():
    """7 parameters, 2 particles of 3 numbers: 8·7 + 8·2·3 numbers of 4 bytes; 3·(2·7·2) + 2·5·3 operations."""
    found = counting.least(counting.Work(7, 2, 3, network_flops=5))
    assert found.bytes == 4 * (56 + 48)
    assert found.flops == 84 + 30


def test_sums_of_the_networks():
    """LeNet-5: 117,600 + 240,000 + 58,920 multiplications; the CIFAR net: 777,600 + 3,115,008 + 589,824 + 34,048."""
    assert LENET5 == 2 * (117_600 + 240_000 + 58_920)
    assert SMALL_CONVOLUTIONAL == 2 * (777_600 + 3_115_008 + 589_824 + 34_048)


def test_the_compiler_counts_a_product_alike():
    a = jnp.ones((8, 16))
    program = jax.jit(lambda a: a @ a.T).lower(a).compile()
    counted = counting.compiled(program)
    assert counted is not None
    assert counted.flops == pytest.approx(2 * 8 * 16 * 8, rel=0.1)
    assert counted.bytes >= a.nbytes


def test_the_compiler_counts_a_loop_once():
    """So that a chunk of steps counts as one step."""

    def chunk(length):
        def body(x, _):
            return jnp.tanh(x @ x), None

        return jax.lax.scan(body, jnp.ones((16, 16)), length=length)[0]

    one, many = (
        counting.compiled(jax.jit(lambda n=n: chunk(n)).lower().compile()) for n in (2, 20)
    )
    assert one is not None and many is not None
    assert many.flops == pytest.approx(one.flops, rel=0.01)
