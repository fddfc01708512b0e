"""Where training cannot run: inside a JAX transformation, and in a forked child of a process that has used JAX."""

import os
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer

from gpvi.errors import NotAvailableError

_forked_after_jax = False
_jax_was_used = False


def check_context(what: str, key: Any) -> None:
    """Raise `NotAvailableError` if this is no place to train in; `what` names the function in the message."""
    if _forked_after_jax:
        raise NotAvailableError(
            f"{what} cannot run in this process: it was forked from one that had used JAX, whose threads it lacks, "
            "and compiling would hang. Start processes by multiprocessing.get_context('spawn'), or fork before JAX is "
            "used."
        )
    if isinstance(key, Tracer) or isinstance(jnp.zeros(()), Tracer):
        raise NotAvailableError(
            f"{what} cannot run inside jax.jit, vmap or grad, because it decides by numbers when to stop. Call it "
            "outside; fit_seeds trains on several targets side by side."
        )


def _remember_jax() -> None:
    """Note, just before a fork, whether JAX has started its threads."""
    global _jax_was_used  # noqa: PLW0603
    from jax._src import xla_bridge

    _jax_was_used = xla_bridge.backends_are_initialized()


def _mark_child() -> None:
    global _forked_after_jax  # noqa: PLW0603
    _forked_after_jax = _forked_after_jax or _jax_was_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_remember_jax, after_in_child=_mark_child)
