"""A run that ends while its draws are looked at resumes with that look, so that nothing depends on the moment."""

import os
import signal
import subprocess
import sys
import textwrap
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi.errors import TrainingWarning
from gpvi.generators import FullRank, SplineFlow, Triangular
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.training import fit as fitting
from gpvi.training import stopping
from gpvi.training.loop import AbandonedError, Interrupts
from gpvi.training.modes import rival
from gpvi.training.modes.gaussians import of_gaussians

SMALL = gpvi.GPVI(generator=Triangular(head=SplineFlow(2, 4, 5.0, 8)), particles=64)
TARGET = gpvi.Target(lambda x: -0.5 * (x[0] ** 2 + ((x[1] - x[0] ** 2) / 0.3) ** 2), dim=2)
HANGS = 3_000
"""Seconds after which a process is taken to hang: many times what it needs on a busy machine."""


def bits(posterior) -> list[bytes]:
    leaves = jax.tree.leaves(eqx.filter(posterior.model, eqx.is_array))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def fit(**options):
    return gpvi.fit(TARGET, SMALL, key=0, progress=False, **options)


@pytest.fixture
def rounds(monkeypatch):
    """Three short rounds; at the end of the second, no rise of the ELBO is enough. Nothing is explored."""
    monkeypatch.setattr("gpvi.methods.gpvi.ROUNDS", (30, 60, 90))
    monkeypatch.setattr(stopping, "LEAST_GAIN", 1e9)
    monkeypatch.setattr(stopping, "ATTEMPTS", 1)
    monkeypatch.setattr(fitting, "once_explored", lambda density, key: lambda: None)


class KilledError(BaseException):
    """What no code of the library catches."""


@pytest.fixture
def whole(rounds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        return fit()


def interrupted_by_a_second_thought():
    signal.raise_signal(signal.SIGINT)
    raise AbandonedError


def killed():
    raise KilledError


@pytest.mark.parametrize("end", [killed, interrupted_by_a_second_thought])
def test_a_round_that_was_not_judged_is_judged_when_the_run_goes_on(
    end, whole, tmp_path, monkeypatch
):
    assert whole.training.steps == 90, "the second judgement compares with the first"
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        patch.setattr(stopping.Judge, "assess", lambda *_: end())
        if end is killed:
            with pytest.raises(KilledError):
                fit(checkpoint=tmp_path)
        else:
            assert fit(checkpoint=tmp_path).training.interrupted
    assert os.listdir(tmp_path) == ["attempt-0-step-30"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        resumed = fit(checkpoint=tmp_path)
    assert bits(resumed) == bits(whole)
    assert resumed.training.chosen == whole.training.chosen


@pytest.mark.slow
def test_components_that_are_interrupted_are_given_up():
    """A mixture that lacks them would not be the one that an uninterrupted run finds."""

    class Impatient:
        asked = False

        def start(self, *_): ...

        def update(self, *_):
            if not self.asked:
                self.asked = True
                signal.raise_signal(signal.SIGINT)

        def close(self): ...

    x = np.array([[-6.0, 0.0], [6.0, 3.0]])
    affines = jax.vmap(lambda at: Affine(at, jnp.eye(2)))(jnp.asarray(x, jnp.float32))
    fitted = rival.Fitted(FullRank(), of_gaussians(affines), np.zeros(1), 0, 0)
    density = Whitened(TARGET, Affine.identity(2, "float32"))
    unasked: Any = None
    own = rival.Rivalry(SMALL, density, unasked, unasked, 0.0)
    with pytest.MonkeyPatch.context() as patch, Interrupts(term=False) as seen:
        patch.setattr(rival, "NullMeter", Impatient)
        with pytest.raises(AbandonedError):
            rival.enriched(own, fitted, FullRank(tails=True), key=jax.random.key(0))
        assert seen() == signal.SIGINT


SCRIPT = textwrap.dedent("""
    import os, signal, sys
    import jax, jax.numpy as jnp, numpy as np
    import gpvi
    from gpvi.exploration import search
    from gpvi.training import refinement
    from gpvi.training.modes import rival

    directory, place = sys.argv[1:]
    rival.ENOUGH = 2.0  # components are trained, though Gaussians would do
    centres = jnp.array([[-6.0, 0.0], [6.0, 3.0]])

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def deadly(owner, name, last):
        inner, calls = getattr(owner, name), []

        def wrapped(*arguments, **options):
            calls.append(name)
            return die() if len(calls) == last else inner(*arguments, **options)

        setattr(owner, name, wrapped)

    def two_bananas(x):
        u, v = (x - centres).T
        return jax.nn.logsumexp(-0.5 * (u**2 + ((v - 0.5 * u**2) / 0.5) ** 2) + jnp.log(jnp.array([0.3, 0.7])))

    callbacks = []
    if place == "round":
        callbacks = [lambda event: die() if event.step >= 260 else None]
    elif place == "exploration":
        deadly(search, "temper", 2)
    elif place == "mixture":
        deadly(rival.Rivalry, "judged", 1)
    elif place == "components":
        train, chunks = rival.train, []

        class Deadly:
            def start(self, *_): ...
            def close(self): ...
            def update(self, done, message):
                chunks.append(done)
                if len(chunks) == 2:
                    die()

        rival.NullMeter = Deadly
    elif place == "chains":
        deadly(refinement.Walk, "advance", 3)

    method = gpvi.GPVI()
    found = gpvi.fit(gpvi.Target(two_bananas, dim=2), key=0, exact=True, progress=False, callbacks=callbacks,
                     checkpoint=directory or None, every=50 if directory else None)
    parts = jax.tree.leaves([found.model, found.trained.model])
    print(found.trained.training.steps, found.trained.method)
    print(b"".join(np.asarray(a).tobytes() for a in parts if hasattr(a, "dtype")).hex())
""")


@pytest.mark.slow
def test_killed_wherever_it_hurts_a_run_ends_the_same(tmp_path):
    """In the middle of a round, of exploration, of a mixture and its components, and of exact chains, in turn."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def run(directory, place="nowhere"):
        words = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(directory), place]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=HANGS, check=False, env=environment
        )
        expected = 0 if place == "nowhere" else -signal.SIGKILL
        assert done.returncode == expected, (place, done.stdout, done.stderr)
        return done.stdout

    whole = run("")
    assert "Mixture" in whole
    for place in ("round", "exploration", "mixture", "components", "chains"):
        run(tmp_path / "killed", place)
    assert run(tmp_path / "killed") == whole
