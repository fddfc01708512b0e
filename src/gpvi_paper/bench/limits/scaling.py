r"""Many devices: what each of them sends in a step, and the training of a network of 10⁷ weights on eight.

The devices are virtual ones of the CPU, in a process of its own. The program is partitioned as it would be for as many
accelerators, and its collective operations are counted (`communication`). From them the time of a step on P
accelerators is projected,

    t(P) = F / (P · R) + S(P) / W(P) + C · L,

with F the operations of one step, S the bytes that a device sends, and C the number of collective operations. Assumed
are R = 20 Tflop/s of each accelerator, W = 300 GB/s between the eight of a machine and 40 GB/s between machines, and a
latency of each collective of L = 20 µs on 8 devices, 40 µs on 64 and 80 µs on 512.
"""

import json
import os
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
from gpvi_paper.bench import counting, process
from gpvi_paper.bench.limits.communication import Moved, collectives
from gpvi_paper.bench.results import Result, Setting

DEVICES = (8, 64, 512)
DRAWS, BATCH, DATA = 512, 1_024, 2_048
WIDTHS, QUICK = (784, 100, 100, 10), (16, 16, 4)
LARGE, RANK, STEPS, SMALL_BATCH = (784, 3_000, 2_546, 10), 2, 4, 128
RATE = 20e12
BANDWIDTH = {8: 300e9, 64: 40e9, 512: 40e9}
LATENCY = {8: 20e-6, 64: 40e-6, 512: 80e-6}


def results(setting: Setting) -> Iterator[Result]:
    """Count the communication of a step and project its time, by method and number of devices."""
    for devices in DEVICES[:1] if setting.quick else DEVICES:
        row = f"{devices} devices"
        if setting.wants(row):
            for values in _in_process("communication", devices, setting.quick):
                yield setting.result(row, values.pop("method"), values)


def network(setting: Setting) -> Iterator[Result]:
    """Measure a process that trains a network of 10⁷ weights on eight virtual devices."""
    for values in _in_process("train", DEVICES[0], setting.quick):
        yield setting.result(f"{values['weights']:,} weights", "GPVI (pathwise)", values)


def _in_process(function: str, devices: int, quick: bool) -> list[dict[str, Any]]:
    """Call a function of this module in a process with so many devices, and return what it prints."""
    call = f"from {__name__} import {function}; {function}({devices}, {quick})"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return process.documents(f"{devices} virtual devices", call, environment=environment)


def methods(dim: int, draws: int) -> dict[str, Method]:
    """Return the methods whose communication is counted."""
    return {
        "GPVI (pathwise)": bnn.method(dim, particles=draws),
        "GPVI (functional)": bnn.method(dim, gradient="functional", particles=draws),
        "Amortized SVGD": AmortizedSVGD(generator=bnn.generator(dim), particles=draws),
        "SVGD": SVGD(particles=draws),
        "MF-VI": MeanFieldVI(particles=draws),
        "Deep ensemble": DeepEnsemble(members=draws),
    }


def communication(devices: int, quick: bool) -> None:
    """Print what a step of each method moves among the devices of this process, as JSON."""
    target, draws = _images(QUICK if quick else WIDTHS), 16 if quick else DRAWS
    for name, method in list(methods(target.dim, draws).items())[-3 if quick else 0 :]:
        moved = moved_by(target, method, devices)
        flops = 6.0 * target.dim * BATCH * draws
        print(json.dumps({"method": name} | _values(moved, devices, flops)), flush=True)


def moved_by(target: Target, method: Method, devices: int) -> list[Moved]:
    """Return the collective operations of a step, from the program compiled for so many devices."""
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
    """Train a large network on the devices of this process, and print its memory and time as JSON."""
    target = _images(QUICK if quick else LARGE)
    generator = bnn.generator(target.dim, rank=None if quick else RANK)
    method = GPVI(generator=generator, particles=devices, learning_rate=1e-3)
    timer = process.StepTimer()
    posterior = fit(
        target,
        method,
        key=jax.random.key(0),
        steps=STEPS,
        batch_size=SMALL_BATCH,
        progress=False,
        callbacks=[timer],
        mesh=devices,
    )
    elbo = posterior.training.history["elbo"]
    values = {
        "weights": target.dim,
        "parameters": counting.numbers(posterior.model),
        "ms": timer.milliseconds,
        "process MiB": process.peak_mebibytes(),
        "first ELBO": float(elbo[0]),
        "last ELBO": float(elbo[-1]),
    }
    print(json.dumps(values))


def _images(widths: tuple[int, ...]) -> Target:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((DATA, widths[0])).astype(np.float32)
    labels = rng.integers(0, widths[-1], DATA)
    return bnn.target(bnn.mlp(widths), "categorical", "fan-in", inputs, labels)
