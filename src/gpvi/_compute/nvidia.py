"""One NVIDIA GPU: which generation it is of, and what XLA is told of programs for it."""

import functools
import os

import jax
import jax.numpy as jnp

SCHEDULING = "xla_gpu_command_buffer_scheduling_mode"


def generation() -> int:
    """The major compute capability of the GPU, where there is one device and it is NVIDIA's; else 0."""
    major = str(getattr(jax.devices()[0], "compute_capability", "")).partition(".")[0]
    return int(major) if jax.device_count() == 1 and major.isdecimal() else 0


def compiler_options() -> dict[str, bool | str]:
    """Let kernels of a step that do not wait for each other run beside each other.

    A step is handed to the GPU as one recorded sequence, in which XLA by default has each kernel wait for the one
    before, needed or not. Exchanges of a small block, one after the other on a few multiprocessors, then hold up the
    networks. Results are the same; what overlaps needs memory of its own. Whoever sets the option in XLA_FLAGS is
    heard. Figures are in docs/speed.md.
    """
    if generation() == 0 or SCHEDULING in os.environ.get("XLA_FLAGS", ""):
        return {}
    options: dict[str, bool | str] = {SCHEDULING: "CONCURRENT"}
    return options if _are_known(tuple(options.items())) else {}


@functools.cache
def _are_known(options: tuple[tuple[str, bool | str], ...]) -> bool:
    """Whether this XLA has such options: they are no part of what JAX promises to keep."""
    try:
        jax.jit(jnp.negative, compiler_options=dict(options))(0.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True
