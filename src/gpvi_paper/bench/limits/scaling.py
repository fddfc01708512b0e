r"""Many devices: what each sends in a step, from the program compiled for so many, and a network too large for one.

The devices are virtual ones of the CPU, in a process of its own: the program is partitioned as it would be for as many
accelerators, and its collective operations are counted (`communication`). From them the time of a step on P
accelerators is projected,

    t(P) = F / (P · R) + S(P) / W(P) + C · L,

with F the operations of one step, S the bytes that a device sends, C the number of collectives, and what is assumed:
R = 20 Tflop/s of each accelerator, W = 300 GB/s between the eight of a machine and 40 GB/s between machines, and
L = 20 µs for each collective on 8 devices, 40 µs on 64 and 80 µs on 512.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gpvi import bnn
from gpvi.methods import GPVI, SVGD, AmortizedSVGD, DeepEnsemble, MeanFieldVI, Method
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.target import Target
from gpvi.training.fit import fit
from gpvi.training.preparation import planned
from gpvi.training.program import compile_chunk
from gpvi_paper.bench import process
from gpvi_paper.bench.limits.communication import Moved, collectives
from gpvi_paper.bench.results import Result, Setting

CASE, NETWORK = "mesh", "mesh-network"
DEVICES = (8, 64, 512)
DRAWS, BATCH, DATA = 512, 1_024, 2_048
WIDTHS, QUICK = (784, 100, 100, 10), (16, 16, 4)
LARGE, RANK, STEPS, SMALL_BATCH = (784, 3_000, 2_546, 10), 2, 4, 128
RATE = 20e12
BANDWIDTH = {8: 300e9, 64: 40e9, 512: 40e9}
LATENCY = {8: 20e-6, 64: 40e-6, 512: 80e-6}


def results(setting: Setting) -> Iterator[Result]:
    """Communication and projected time of a step, by method and number of devices."""
    for devices in DEVICES[:1] if setting.quick else DEVICES:
        row = f"{devices} devices"
        if setting.wants(row):
            for line in _in_process("communication", devices, setting.quick):
                found = json.loads(line)
                yield Result(CASE, row, found.pop("method"), found)


def network(setting: Setting) -> Iterator[Result]:
    """Memory and time of a process that trains a network of 10⁷ weights on eight virtual devices."""
    for line in _in_process("train", DEVICES[0], setting.quick):
        found = {name: float(value) for name, value in json.loads(line).items()}
        yield Result(NETWORK, f"{found['weights']:,.0f} weights", "GPVI (pathwise)", found)


def _in_process(function: str, devices: int, quick: bool) -> list[str]:
    call = f"from gpvi_paper.bench import scaling; scaling.{function}({devices}, {quick})"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    printed = process.lines(f"{devices} virtual devices", call, environment=environment)
    return [line for line in printed if line.startswith("{")]


def methods(dim: int, draws: int) -> dict[str, Method]:
    """What is counted."""
    return {
        "GPVI (pathwise)": bnn.method(dim, particles=draws),
        "GPVI (functional)": bnn.method(dim, gradient="functional", particles=draws),
        "Amortized SVGD": AmortizedSVGD(generator=bnn.generator(dim), particles=draws),
        "SVGD": SVGD(particles=draws),
        "MF-VI": MeanFieldVI(particles=draws),
        "Deep ensemble": DeepEnsemble(members=draws),
    }


def communication(devices: int, quick: bool) -> None:
    """Print what a step of each method moves among so many devices."""
    target, draws = _images(QUICK if quick else WIDTHS), 16 if quick else DRAWS
    for name, method in list(methods(target.dim, draws).items())[-3 if quick else 0 :]:
        moved = moved_by(target, method, devices)
        flops = 6.0 * target.dim * BATCH * draws
        print(json.dumps({"method": name} | _values(moved, devices, flops)), flush=True)


def moved_by(target: Target, method: Method, devices: int) -> list[Moved]:
    """The collective operations of a step, from the program compiled for so many devices."""
    plan = planned(target, method, 100, None, BATCH, None, devices)
    density = Whitened(target, Affine.identity(target.dim, target.dtype))
    state = method.init(density, plan.optimizer, key=jax.random.key(0))
    program = compile_chunk(plan, density, state)
    arrays = plan.place(eqx.filter(state, eqx.is_array), state)
    placed = eqx.filter(plan.place_target(density), eqx.is_array)
    compiled = program.compiled(arrays, placed, jax.random.key(0), jnp.asarray(0), None)
    return collectives(compiled.as_text() or "", plan.chunk[0])


def _values(moved: list[Moved], devices: int, flops: float) -> dict[str, Any]:
    reductions = [each for each in moved if each.operation in ("all-reduce", "reduce-scatter")]
    gathers = [each for each in moved if each.operation == "all-gather"]
    exchanges = [each for each in moved if each.operation in ("all-to-all", "collective-permute")]
    sent = sum(each.sent(devices) for each in moved)
    compute = flops / (devices * RATE)
    talk = sent / BANDWIDTH[devices] + sum(each.times for each in moved) * LATENCY[devices]
    return {
        "reduced MB": sum(each.bytes for each in reductions) / 1e6,
        "gathered MB": sum(each.bytes for each in gathers) / 1e6,
        "exchanged MB": sum(each.bytes for each in exchanges) / 1e6,
        "sent MB": sent / 1e6,
        "collectives": sum(each.times for each in moved),
        "computing ms": 1e3 * compute,
        "moving ms": 1e3 * talk,
        "speed-up": flops / RATE / (compute + talk),
    }


def train(devices: int, quick: bool) -> None:
    """Train a large network on so many devices of this process, and print what it took."""
    target = _images(QUICK if quick else LARGE)
    generator = bnn.generator(target.dim, rank=None if quick else RANK)
    method = GPVI(generator=generator, particles=devices, learning_rate=1e-3)
    chunks: list[tuple[int, float]] = []
    posterior = fit(
        target,
        method,
        key=jax.random.key(0),
        steps=STEPS,
        batch_size=SMALL_BATCH,
        progress=False,
        callbacks=[lambda event: chunks.append((event.step, time.perf_counter()))],
        mesh=devices,
    )
    (first, began), (last, ended) = chunks[0], chunks[-1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    elbo = posterior.training.history["elbo"]
    values = {
        "weights": target.dim,
        "parameters": sum(
            leaf.size for leaf in jax.tree.leaves(eqx.filter(posterior.model, eqx.is_array))
        ),
        "ms": 1e3 * (ended - began) / max(1, last - first),
        "process MiB": peak / (2**20 if sys.platform == "darwin" else 2**10),
        "first ELBO": float(elbo[0]),
        "last ELBO": float(elbo[-1]),
    }
    print(json.dumps(values))


def _images(widths: tuple[int, ...]) -> Target:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((DATA, widths[0])).astype(np.float32)
    labels = rng.integers(0, widths[-1], DATA)
    return bnn.target(bnn.mlp(widths), "categorical", "fan-in", inputs, labels)
