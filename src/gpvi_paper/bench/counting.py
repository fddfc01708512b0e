r"""Bytes and operations of a training step, by hand and by the compiler's account.

A step of any method with a generator of P parameters, nearly all of them in the last layer, must read them to draw,
read them again to bring the gradient back, and read and write the parameters and both moments of Adam: 8 P numbers.
The gradient itself need never be in memory, since it is a product of n rows. For n particles of d numbers, noise,
points, scores and directions are written once and read once. What networks do with the data counts as operations only.
"""

import itertools
from typing import NamedTuple

import jax
from jaxtyping import Array

PASSES = 8
"""Passes over the parameters: to draw, to pull back, and three reads and three writes of the optimiser."""
BACKWARD = 2
"""A gradient takes twice as many operations as the value."""


class Count(NamedTuple):
    """The bytes and operations of one step."""

    bytes: float
    flops: float


class Work(NamedTuple):
    """The sizes that determine the work of a step."""

    parameters: int
    """The number of parameters of the generator."""
    particles: int
    dim: int
    network_flops: float
    """The operations of one network on a batch of data, forward."""
    forwards: int = 1
    """The number of batches of noise that the generator maps."""


def least(work: Work, width: int = 4) -> Count:
    """Return the least that a step must move and compute, for numbers of `width` bytes."""
    moved = PASSES * work.parameters + 2 * 4 * work.particles * work.dim
    generator = 2 * work.parameters * work.particles * (work.forwards + BACKWARD)
    networks = work.particles * work.network_flops * (1 + BACKWARD)
    return Count(width * moved, generator + networks)


def compiled(program: jax.stages.Compiled) -> Count | None:
    """Return what the compiler counts, if it does. A loop's body counts once, so a chunk of steps counts as one."""
    analysis = program.cost_analysis()
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    if not analysis or "flops" not in analysis:
        return None
    return Count(float(analysis.get("bytes accessed", float("nan"))), float(analysis["flops"]))


def convolution_flops(outputs: tuple[int, int], window: tuple[int, int, int, int]) -> float:
    """Return the operations on one image: two for each weight (u, v, in, out) at each position of the window."""
    u, v, channels, filters = window
    return 2.0 * outputs[0] * outputs[1] * u * v * channels * filters


def dense_flops(*widths: int) -> float:
    """Return the operations of dense layers on one row."""
    return 2.0 * sum(a * b for a, b in itertools.pairwise(widths))


def numbers(tree: object) -> int:
    """Return how many numbers the arrays of a tree have."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree) if isinstance(leaf, Array))
