r"""Bytes and multiplications of a training step, by hand and by the compiler's account.

A step of any method with a generator of P parameters (nearly all of them in the last layer) must read them to draw,
read them again to bring the gradient back, and read and write parameter and both moments of Adam: 8 P numbers. The
gradient itself need never lie in memory: it is a product of n rows. Of the n particles of d numbers, noise, points,
scores and directions are written once and read once. What the networks do with the data counts as operations alone.
"""

import itertools
from typing import NamedTuple

import jax
from jaxtyping import Array

PASSES = 8
"""Over the parameters: draw, pull back, three reads and three writes of the optimiser."""
BACKWARD = 2
"""A gradient takes twice as many operations as the value."""


class Count(NamedTuple):
    """Of one step."""

    bytes: float
    flops: float


class Work(NamedTuple):
    """What a step is made of."""

    parameters: int
    """Of the generator."""
    particles: int
    dim: int
    network_flops: float
    """Of one network on the data of a batch, forward."""
    forwards: int = 1
    """Batches of noise that the whole generator maps; what maps noise without need of the result counts once."""


def least(work: Work, width: int = 4) -> Count:
    """The least that a step must move and do; numbers of `width` bytes."""
    moved = PASSES * work.parameters + 2 * 4 * work.particles * work.dim
    generator = 2 * work.parameters * work.particles * (work.forwards + BACKWARD)
    networks = work.particles * work.network_flops * (1 + BACKWARD)
    return Count(width * moved, generator + networks)


def compiled(program: jax.stages.Compiled) -> Count | None:
    """What the compiler counts; a loop's body counts once, so that a chunk of steps counts as one."""
    found = program.cost_analysis()
    found = found[0] if isinstance(found, list) else found
    if not found or "flops" not in found:
        return None
    return Count(float(found.get("bytes accessed", float("nan"))), float(found["flops"]))


def convolution_flops(outputs: tuple[int, int], window: tuple[int, int, int, int]) -> float:
    """Of one image: a multiplication and an addition for each weight (u, v, in, out) at each place."""
    u, v, channels, filters = window
    return 2.0 * outputs[0] * outputs[1] * u * v * channels * filters


def dense_flops(*widths: int) -> float:
    """Of one row through dense layers."""
    return 2.0 * sum(a * b for a, b in itertools.pairwise(widths))


def numbers(tree: object) -> int:
    """How many there are in a tree of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree) if isinstance(leaf, Array))
