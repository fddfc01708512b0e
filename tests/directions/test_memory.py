"""Memory grows as n·d + n²·k: nothing of size n·n·d is ever formed."""

import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpvi._compute.outer_products import WIDE
from gpvi.directions import GFSDDirection, GFSFDirection, SVGDDirection, functional_direction
from gpvi.generators import AffineFlow, Residual, SplineFlow, Triangular
from gpvi.kernels import OnNoise
from gpvi.methods import AmortizedSVGD
from gpvi.solvers.block import Block
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target

GIB = 2**30
KEY = jax.random.key(0)


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile()


def peak_bytes(program):
    """The most bytes that a program needs: arguments, outputs and scratch."""
    memory = program.memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


def largest_array(program):
    """The most elements of any array in the compiled program, fused ones included."""
    shapes = re.findall(r"\b(?:f16|bf16|f32|f64|s32|s64|u32|pred)\[([\d,]+)\]", program.as_text())
    return max(math.prod(int(size) for size in shape.split(",")) for shape in shapes)


def rows(n, d):
    return jax.ShapeDtypeStruct((n, d), jnp.float32)


@pytest.mark.parametrize("direction", [SVGDDirection(), GFSDDirection(), GFSFDirection()])
def test_particle_directions(direction):
    """100 particles in 100,000 dimensions, where one n×n×d array would take 4 GB."""
    n, d = 100, 100_000
    program = compiled(lambda x, s: direction(None, x, s, key=KEY)[0], rows(n, d), rows(n, d))
    assert peak_bytes(program) < GIB
    assert n * d <= largest_array(program) < 2 * n * d


def test_functional_direction_with_a_kernel_on_all_of_z():
    """Eq. 6 with 64 draws in 20,000 dimensions: the tail's mean is a product of matrices, with no n²·d either."""
    n, d, width = 64, 20_000, 8
    with jax.enable_x64(False):
        spec = Residual(latent=16, hidden=(width,), scale=0.1)
        generator = spec.build(d, key=KEY, dtype="float32")
        program = compiled(
            lambda z_prime, score, z: (
                functional_direction(
                    generator, OnNoise("full"), Block(), None, z_prime, score, z
                ).direction
            ),
            *[rows(n, d)] * 3,
        )
    assert peak_bytes(program) < 64 * 2**20
    assert n * d <= largest_array(program) < 2 * n * d


@pytest.mark.parametrize("head", [AffineFlow(), SplineFlow(layers=2, knots=3, width=8)])
def test_functional_direction(head):
    """64 draws of a generator of 20,000 dimensions driven by 16: n²·k and n·d, but no n²·d."""
    n, d = 64, 20_000
    with jax.enable_x64(False):
        spec = Triangular(latent=16, head=head, hidden=(8,))
        generator = spec.build(d, key=KEY, dtype=jnp.float32)
        arrays, static = eqx.partition(generator, eqx.is_array)

        def direction(arrays, z_prime, score, z):
            model = eqx.combine(arrays, static)
            return functional_direction(
                model, OnNoise(), Block(), None, z_prime, score, z
            ).direction

        program = compiled(direction, arrays, rows(n, d), rows(n, d), rows(n, d))
    assert peak_bytes(program) < 8 * n * d * 4
    assert n * d <= largest_array(program) < 2 * n * d


@pytest.mark.parametrize("particles", [4, 32])
def test_the_gradient_of_a_last_layer(particles):
    """Of few draws it never lies in memory, nor does a copy of the weights; of many draws it does."""
    dim, width = 10_000, WIDE
    method = AmortizedSVGD(Residual(latent=4, hidden=(width,)), particles=particles)
    with jax.enable_x64(False):
        density = Whitened(
            Target(lambda x: -0.5 * (x**2).sum(), dim=dim),
            Affine.identity(dim, np.dtype("float32")),
        )
        optimizer = optax.adam(1e-3)
        state = method.init(density, optimizer, key=KEY)

        def step(state):
            return method.step(density, optimizer, state, None, key=KEY)[0]

        program = jax.jit(step, donate_argnums=0).lower(state).compile()
    layer = 4 * dim * width
    found = program.memory_analysis()
    assert found is not None
    scratch = found.temp_size_in_bytes
    assert scratch < layer / 4 if particles == 4 else scratch > layer


def test_the_guard_sees_an_n_n_d_array():
    n, d = 10, 1_000

    def careless(x):
        return jnp.sin(x[:, None] - x[None]).sum(0)

    assert largest_array(compiled(careless, rows(n, d))) == n * n * d
