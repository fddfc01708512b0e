"""Checkpoints of `gpvi.bnn.fit`, which trains in several stages.

The directory holds the MAP networks that generators start from, and what identifies the run, as a checkpoint of step 0.
Each of the following stages has a subdirectory. The MAP networks are saved, not trained again, since the parameters of
a generator are relative to the network that it started from.
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
    """The stages of one run; without a directory nothing is saved."""

    def __init__(self, directory: str | os.PathLike[str] | None, every: int | None):
        self._saves = None if directory is None else Checkpoints(directory, every)

    def held(self) -> AbstractContextManager[None]:
        """Keep other processes out of the directory."""
        return nullcontext() if self._saves is None else self._saves.locked()

    def options(self, stage: str) -> dict[str, Any]:
        """Return the options of `gpvi.fit` that say where a stage is saved, and how often."""
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
        """Return the saved MAP networks, or those that `fitted` trains now; a directory of another run is refused."""
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
