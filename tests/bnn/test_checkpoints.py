"""Training of networks that is killed or interrupted resumes as if nothing had happened."""

import os
import signal
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import gpvi
from gpvi import bnn
from gpvi.bnn import training
from gpvi.errors import InputError, OtherRunError, TrainingWarning
from gpvi.generators import Linear
from gpvi.persistence import format as storage
from gpvi.progress import NullMeter
from selection import some_slow

KEY = jax.random.key(0)
NETWORK = bnn.mlp((2, 3, 1), "tanh")
METHOD = gpvi.GPVI(generator=Linear(), particles=4)
X = np.random.default_rng(0).normal(size=(12, 2))
Y = np.sin(X[:, 0])
LABELS = (X[:, 0] > 0).astype(int)
CLASSES = bnn.mlp((2, 3, 2), "tanh")
HALF = 6
"""Steps of a stage, of which each is a chunk."""


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Syncing takes most of the time; what is synced, and when, is tested with the storage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def fit(network=NETWORK, likelihood: Any = "gaussian", y=Y, **options) -> bnn.Predictive:
    given = {"key": KEY, "method": METHOD, "members": 2, "steps": 2 * HALF, "progress": False}
    return bnn.fit(network, likelihood, options.pop("X", X), y, **(given | options))


def bits(predictive: bnn.Predictive) -> list[bytes]:
    trees = [(each.model, each.affine) for each in predictive.members]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(eqx.filter(trees, eqx.is_array))]


@pytest.fixture(scope="module")
def whole() -> bnn.Predictive:
    """What nothing has interrupted."""
    return fit()


class KilledError(BaseException):
    """What no code of the library catches."""


def killed(saves: int, monkeypatch) -> None:
    """From here on the process dies when it has written so many saves, and wants to write another."""
    write, written = storage.write, []

    def fused(*arguments):
        if len(written) == saves:
            raise KilledError
        written.append(arguments)
        write(*arguments)

    monkeypatch.setattr(storage, "write", fused)


@pytest.mark.parametrize("saves", some_slow((0, 1, 3, 5, 6), fast=(1, 5)))
def test_a_run_that_is_killed_goes_on_bit_for_bit(saves, whole, tmp_path, monkeypatch):
    """Before MAP networks are saved, after that, with the noise kept low, at the end of that, and with it free."""
    with monkeypatch.context() as patch:
        killed(saves, patch)
        with pytest.raises(KilledError):
            fit(checkpoint=tmp_path, every=2)
    there = [len(list((tmp_path / stage).glob("attempt-*"))) > 0 for stage in ("", "held", "free")]
    assert there == [saves > 0, saves > 1, saves > 5]
    resumed = fit(checkpoint=tmp_path, every=2)
    assert bits(resumed) == bits(whole)
    assert [each.training.notes for each in resumed.members] == [(), ()]


@pytest.mark.slow
@pytest.mark.parametrize("saves", [1, 3, 6])
def test_classes_that_are_killed_go_on_with_the_same_sharpness(saves, tmp_path, monkeypatch):
    """With a fold of the data held out, and with all data."""
    whole = fit(CLASSES, "categorical", LABELS)
    with monkeypatch.context() as patch:
        killed(saves, patch)
        with pytest.raises(KilledError):
            fit(CLASSES, "categorical", LABELS, checkpoint=tmp_path, every=2)
    there = [len(list((tmp_path / stage).glob("attempt-*"))) > 0 for stage in ("crossed", "free")]
    assert there == [saves > 1, saves > 5]
    with pytest.raises(OtherRunError, match="sharpness"):
        fit(CLASSES, "categorical", LABELS, checkpoint=tmp_path, every=2, sharpness=1.0)
    resumed = fit(CLASSES, "categorical", LABELS, checkpoint=tmp_path, every=2)
    assert bits(resumed) == bits(whole)
    assert resumed.sharpness == whole.sharpness != 1


class Counter(NullMeter):
    """Counts chunks, and does something after one of them."""

    def __init__(self, at: int = -1, act: Callable[[], None] = lambda: None):
        self.seen, self._at, self._act = 0, at, act

    def update(self, done: int, message: str) -> None:
        chunk = message.startswith("elbo ")
        self.seen += chunk
        if chunk and self.seen == self._at:
            self._act()


def test_a_finished_run_trains_nothing(whole, tmp_path, monkeypatch):
    fit(checkpoint=tmp_path)
    monkeypatch.setattr(training, "map_networks", None)
    again = fit(checkpoint=tmp_path, progress=(counter := Counter()))
    assert bits(again) == bits(whole)
    assert counter.seen == 0
    assert whole.sharpness == again.sharpness == 1, "regression is not temperature-scaled"


@pytest.mark.parametrize("chunk", [2, HALF + 2])
def test_an_interrupted_run_returns_what_there_is_and_goes_on(chunk, whole, tmp_path):
    stop = Counter(chunk, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.warns(
        TrainingWarning, match="interrupted after step 2 of 6; the same call goes on"
    ):
        part = fit(checkpoint=tmp_path, progress=stop)
    assert stop.seen == chunk
    assert np.isfinite(part.predict(X, key=KEY).mean).all()
    assert bits(fit(checkpoint=tmp_path)) == bits(whole)


@pytest.mark.parametrize(
    ("what", "changed"),
    {
        "key": {"key": jax.random.key(1)},
        "members": {"members": 3},
        "number of steps": {"steps": 4 * HALF},
        "batch size": {"batch_size": 5},
        "method": {"method": gpvi.GPVI(generator=Linear(), particles=5)},
        "data": {"y": Y + 1},
        "log-density": {"prior": "normal"},
    }.items(),
    ids=str,
)
def test_another_run_is_refused_before_it_is_trained(what, changed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        killed(1, patch)
        with pytest.raises(KilledError):
            fit(checkpoint=tmp_path)
    monkeypatch.setattr(training, "fit_seeds", None)
    with pytest.raises(OtherRunError, match=what):
        fit(checkpoint=tmp_path, **changed)


def test_a_run_of_another_method_is_refused(tmp_path):
    fit(checkpoint=tmp_path, method="mfvi", members=1)
    with pytest.raises(OtherRunError, match="members, sharpness, method"):
        fit(checkpoint=tmp_path)
    with pytest.raises(OtherRunError, match="method"):
        fit(checkpoint=tmp_path, method="svgd", members=1)


def test_damaged_networks_are_fitted_again(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        killed(3, patch)
        with pytest.raises(KilledError):
            fit(checkpoint=tmp_path, every=2)
    (tmp_path / "attempt-0-step-0").write_bytes(b"damaged")
    with pytest.warns(TrainingWarning, match="step 0 is damaged and was skipped"):
        resumed = fit(checkpoint=tmp_path)
    assert bits(resumed) == bits(whole)


@pytest.mark.slow
def test_methods_of_one_stage_have_the_directory_to_themselves(tmp_path):
    options = {"method": "mfvi", "members": 1, "likelihood": "bernoulli", "y": LABELS}
    done = fit(checkpoint=tmp_path, **options)
    assert [path.name for path in tmp_path.iterdir()] == [f"attempt-0-step-{2 * HALF}"]
    assert bits(fit(checkpoint=tmp_path, **options)) == bits(done) == bits(fit(**options))


@pytest.mark.slow
def test_a_mesh_of_one_device_changes_nothing(whole):
    assert bits(fit(mesh=1)) == bits(whole)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 5}, "no checkpoint is saved"),
        ({"checkpoint": ""}, "checkpoint is ''"),
        ({"checkpoint": "x", "every": 0}, "every is 0"),
        ({"mesh": 10_000}, "mesh is 10000"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_fitted(options, words, monkeypatch):
    monkeypatch.setattr(training, "map_networks", None)
    with pytest.raises(InputError, match=words):
        fit(**options)
