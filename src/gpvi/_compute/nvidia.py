"""A single NVIDIA GPU: its generation, and the compiler options for it."""

import functools
import os

import jax
import jax.numpy as jnp

SCHEDULING = "xla_gpu_command_buffer_scheduling_mode"


def generation() -> int:
    """The major compute capability of the GPU; 0 unless there is exactly one device, made by NVIDIA."""
    major = str(getattr(jax.devices()[0], "compute_capability", "")).partition(".")[0]
    return int(major) if jax.device_count() == 1 and major.isdecimal() else 0


def compiler_options() -> dict[str, bool | str]:
    """Options by which independent kernels of a step run concurrently.

    A step is launched as one command buffer, in which XLA by default makes each kernel wait for the previous one,
    needed or not. The inversion of small matrices, which occupies a few multiprocessors, then delays the networks.
    Results are the same, but kernels that overlap need separate memory. An option set in XLA_FLAGS takes precedence.
    Figures are in docs/speed.md.
    """
    if generation() == 0 or SCHEDULING in os.environ.get("XLA_FLAGS", ""):
        return {}
    options: dict[str, bool | str] = {SCHEDULING: "CONCURRENT"}
    return options if _are_known(tuple(options.items())) else {}


@functools.cache
def _are_known(options: tuple[tuple[str, bool | str], ...]) -> bool:
    """Whether this version of XLA has these options, which are not part of JAX's stable interface."""
    try:
        jax.jit(jnp.negative, compiler_options=dict(options))(0.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True
