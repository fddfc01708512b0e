"""The library's spline couplings against the same map by FlowJAX, on one core.

    python benchmarks/spline.py [--repeats 40]

Times T and log|det T′| of a batch, the gradient of E[½‖x‖² − log|det T′|] in all parameters, and tracing and compiling
that gradient; also T′ itself. Prints milliseconds of processor time and the ratio FlowJAX / ours. Both take turns, and
the least of several times counts: other load only adds.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import argparse
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from flowjax.bijections import Chain, Coupling, RationalQuadraticSpline
from jaxtyping import Array, DTypeLike, PRNGKeyArray

from gpvi.generators import SplineFlow
from gpvi.generators.bijections import FlowHead, scalar_affine, stacked_flow
from gpvi.generators.spline import SplineHead

SIZES = ((3, 1024), (10, 409))
"""Dimensions and draws."""


def by_flowjax(spec: SplineFlow, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> FlowHead:
    """The map of `spec` from FlowJAX's parts."""

    def layer(key: PRNGKeyArray) -> Coupling:
        warp = RationalQuadraticSpline(knots=spec.knots, interval=spec.interval)
        return Coupling(
            key,
            transformer=Chain([warp, scalar_affine()]),
            untransformed_dim=dim // 2,
            dim=dim,
            nn_width=spec.width,
            nn_depth=spec.depth,
        )

    return stacked_flow(layer, dim, spec.layers, key=key, dtype=dtype, scale=spec.scale)


def moved(head: FlowHead | SplineHead) -> FlowHead | SplineHead:
    """Away from the identity, so that no bin or branch is special."""
    leaves, structure = jax.tree.flatten(head)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    return jax.tree.unflatten(
        structure,
        [
            a + 0.1 * jax.random.normal(k, a.shape, a.dtype) if eqx.is_inexact_array(a) else a
            for a, k in zip(leaves, keys, strict=True)
        ],
    )


def programs(head: FlowHead | SplineHead, z: Array) -> tuple[dict[str, Callable], float]:
    """What is timed, compiled, and the seconds to trace and compile the gradient."""
    parameters, static = eqx.partition(head, eqx.is_inexact_array)

    def both(p, z):
        return jax.vmap(eqx.combine(p, static).transform_and_log_det)(z)

    def loss(p, z):
        x, log_det = both(p, z)
        return (0.5 * (x**2).sum(1) - log_det).mean()

    def jacobians(p, z):
        return jax.vmap(lambda point: eqx.combine(p, static).jacobian(point).as_matrix())(z)

    began = time.process_time()
    gradient = jax.jit(jax.grad(loss)).lower(parameters, z).compile()
    seconds = time.process_time() - began
    compiled = {
        "forward": jax.jit(both).lower(parameters, z).compile(),
        "gradient": gradient,
        "jacobian": jax.jit(jacobians).lower(parameters, z).compile(),
    }
    return {
        name: lambda program=program: program(parameters, z) for name, program in compiled.items()
    }, seconds


def milliseconds(program: Callable) -> float:
    """Processor time of one call."""
    began = time.process_time()
    jax.block_until_ready(program())
    return 1e3 * (time.process_time() - began)


def compare(dim: int, draws: int, dtype: DTypeLike, repeats: int) -> None:
    """Measure one size and print it."""
    spec = SplineFlow()
    z = jax.random.normal(jax.random.key(1), (draws, dim), dtype)
    theirs = by_flowjax(spec, dim, key=jax.random.key(0), dtype=dtype)
    ours = spec.build(dim, key=jax.random.key(0), dtype=dtype)
    timed = [programs(moved(head), z) for head in (theirs, ours)]
    label = f"{jnp.dtype(dtype).name}, d = {dim}, {draws} draws"
    for name in timed[0][0]:
        both = [functions[name] for functions, _ in timed]
        for program in both:
            program()
        times = [[milliseconds(program) for program in both] for _ in range(repeats)]
        flowjax, here = (min(column) for column in zip(*times, strict=True))
        print(f"{label:<32}{name:<12}{flowjax:8.2f} ms{here:8.2f} ms{flowjax / here:7.2f}×")
    flowjax, here = (seconds for _, seconds in timed)
    print(f"{label:<32}{'compile':<12}{flowjax:9.2f} s{here:9.2f} s{flowjax / here:7.2f}×")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time the spline couplings against FlowJAX's.")
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}{'FlowJAX':>50}{'here':>11}")
    for double in (False, True):
        with jax.enable_x64(double):
            for dim, draws in SIZES:
                compare(dim, draws, jnp.float64 if double else jnp.float32, options.repeats)


if __name__ == "__main__":
    main()
