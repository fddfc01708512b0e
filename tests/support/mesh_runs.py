"""Train one posterior by several methods on a mesh, in one process or several: a script for `test_mesh.py`.

All processes together have so many devices; the first writes OUT, an .npz of what each method found, and of what its
compiled program moves between the devices.
"""

import argparse
import contextlib
import math
import os
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("out", type=Path)
parser.add_argument("--devices", type=int, default=8)
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--process", type=int, default=0)
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--axes", nargs="*", default=["particles"])
parser.add_argument("--shape", nargs="*", type=int)
parser.add_argument("--methods", nargs="*")
parser.add_argument("--alone", action="store_true", help="on one device, too")
parser.add_argument("--draws", action="store_true", help="compare draws, not parameters")
parser.add_argument("--checkpoint", type=Path)
parser.add_argument("--init", choices=["auto"], help="look for a start")
parser.add_argument("--stop", type=int, default=10**9, help="after this step")
parser.add_argument("--replicated", action="store_true", help="every process has all data")
options = parser.parse_args()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 "
    f"--xla_force_host_platform_device_count={options.devices // options.processes}"
)

import equinox as eqx
import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
if options.processes > 1:
    jax.distributed.initialize(
        f"127.0.0.1:{options.port}",
        options.processes,
        options.process,
        cluster_detection_method="deactivate",
    )

import gpvi
from gpvi.generators import Residual, Triangular
from gpvi.parallel import hosts
from gpvi.training.program import Program
from gpvi_paper.bench.limits.communication import collectives, summary

DIM, DATA, BATCH, STEPS = 24, 48, 16, 10
RESIDUAL = Residual(latent=4, hidden=(8,), learn_scale=True)
AFFINE = Triangular(latent=4, head="affine", hidden=(8,))
METHODS = {
    "gpvi-functional": gpvi.GPVI(RESIDUAL, gradient="functional", particles=16),
    "gpvi-pathwise": gpvi.GPVI(AFFINE, particles=16),
    "amortised-svgd": gpvi.AmortizedSVGD(generator=RESIDUAL, particles=16),
    "svgd": gpvi.SVGD(particles=16),
    "mean-field": gpvi.MeanFieldVI(particles=16),
    "ensemble": gpvi.DeepEnsemble(members=8),
}
MORE = {
    "gpvi-l2": gpvi.GPVI(AFFINE, gradient="l2", particles=16),
    "gpvi-helper": gpvi.GPVI(RESIDUAL, gradient="functional", solver="helper", particles=16),
    "gpvi-default": gpvi.GPVI(particles=32),
    "uneven": gpvi.SVGD(particles=13),
    "many": gpvi.SVGD(particles=40),
    "gfsd": gpvi.GFSD(particles=16),
    "gfsf": gpvi.GFSF(particles=16),
    "ksd": gpvi.KSD(particles=16),
    "full-rank": gpvi.FullRankVI(particles=16),
    "planar": gpvi.NormalizingFlow(kind="planar", particles=16),
    "hmc": gpvi.HMC(chains=4, draws=5, warmup=20, leapfrogs=4),
    "nuts": gpvi.NUTS(chains=4, draws=5, warmup=20),
}


def log_likelihood(x, batch):
    return -0.5 * (batch[1] - batch[0] @ x) ** 2


def log_prior(x):
    return -0.5 * x @ x


def posterior_of(data):
    return gpvi.Target(log_likelihood=log_likelihood, log_prior=log_prior, data=data, dim=DIM)


def trained(name, target, mesh):
    """All parameters, or particles, of the posterior that a method finds."""

    def stop(event):
        if event.step >= options.stop:
            raise StopIteration

    method = (METHODS | MORE)[name]
    whole = name in ("hmc", "nuts")
    posterior = gpvi.fit(
        target,
        method,
        key=jax.random.key(0),
        steps=None if whole else STEPS,
        batch_size=None if whole else BATCH,
        init=options.init,
        progress=False,
        mesh=mesh,
        checkpoint=options.checkpoint,
        every=None if options.checkpoint is None else 1,
        callbacks=[stop],
    )
    if options.draws and method.generative:
        return np.asarray(posterior.sample(8, key=jax.random.key(1)))
    leaves = jax.tree.leaves(eqx.filter(posterior.model, eqx.is_inexact_array))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


@contextlib.contextmanager
def counted():
    """While open, what a step of the compiled program moves between devices."""
    moved, compiled = [], Program.compiled

    def counting(self, *arguments):
        found = compiled(self, *arguments)
        moved[:] = collectives(found.as_text() or "")
        return found

    Program.compiled = counting
    yield moved
    Program.compiled = compiled


def main():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((DATA, DIM)), rng.standard_normal(DATA)
    shape = options.shape or [options.devices]
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(shape), tuple(options.axes))
    alone = posterior_of(data)
    target = alone
    if options.processes > 1 and not options.replicated:
        mine = hosts.share(DATA, mesh)
        target = posterior_of(hosts.distribute(tuple(a[mine] for a in data), mesh, size=DATA))
    found = {}
    for name in options.methods or METHODS:
        with counted() as moved:
            found[name] = trained(name, target, mesh)
        total = summary(moved)
        found[f"{name}/operations"] = np.asarray(list(total))
        found[f"{name}/bytes"] = np.asarray(list(total.values()))
        gathered = [each.shapes for each in moved if each.operation == "all-gather"]
        found[f"{name}/gathered"] = np.asarray(
            max((math.prod(shape) for shapes in gathered for _, shape in shapes), default=0)
        )
        if options.alone:
            found[f"{name}/alone"] = trained(name, alone, None)
    if hosts.first():
        np.savez(options.out, **found)


if __name__ == "__main__":
    main()
