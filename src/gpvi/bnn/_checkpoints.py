"""The stages of training a network in one directory, so that a run that dies goes on where it was.

The directory itself holds the networks that generators start from, with what tells this run from others, as a
checkpoint of step 0. The stages of training that follow have a directory each in it. The networks are kept, and not
fitted again, since a generator makes sense around the network that it started from alone.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from gpvi.errors import TrainingWarning, warn
from gpvi.targets.target import Target
from gpvi.training.checkpoint import Checkpoints, probes
from gpvi.training.recovery import Run


class Stages:
    """Those of one run; without a directory nothing is saved."""

    def __init__(self, directory: str | os.PathLike[str] | None, every: int | None):
        self._saves = None if directory is None else Checkpoints(directory, every)

    def held(self) -> AbstractContextManager[None]:
        """Keep other processes out of the directory."""
        return nullcontext() if self._saves is None else self._saves.locked()

    def options(self, stage: str) -> dict[str, Any]:
        """Where a stage of this name is saved, and how often, as `gpvi.fit` takes it."""
        if self._saves is None:
            return {}
        return {"checkpoint": self._saves.directory / stage, "every": self._saves.every}

    def networks(
        self,
        number: int,
        target: Target,
        who: Callable[[], Mapping[str, str]],
        fitted: Callable[[], Float[Array, "m d"]],
    ) -> Float[Array, "m d"]:
        """The networks to start from, as they were saved, or `fitted` now; another run than `who` is refused."""
        if self._saves is None:
            return fitted()
        with target.precision():
            self._saves.identify(who(), probes(target))
            fresh = Run(jnp.zeros((number, target.dim), target.dtype))
            run = self._saves.resumed(0, fresh)
        for note in run.notes:
            warn(note, TrainingWarning)
        if run is not fresh:
            return cast(Array, run.arrays)
        run.arrays, run.notes = (points := fitted()), []
        self._saves.save(0, run)
        return points
