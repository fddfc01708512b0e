"""Predictions are the same after a trip through files, and what does not belong to them is refused."""

import copy
import dataclasses
import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from damage import array, put
from gpvi import bnn
from gpvi.errors import InputError, NotAvailableError, StorageError
from gpvi.generators import Linear
from gpvi.persistence import format as storage
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


@dataclasses.dataclass(frozen=True)
class Wide(bnn.Gaussian):
    """A likelihood of one's own."""

    factor: float = 2.0

    def moments(self, outputs, extra):
        mean, variance = super().moments(outputs, extra)
        return mean, self.factor * variance


class Tokens(eqx.Module):
    """Mean embedding, and a dense layer; `scale` is a constant."""

    table: eqx.nn.Embedding
    outer: eqx.nn.Linear
    scale: float = eqx.field(static=True)

    def __init__(self, key, scale=1.0):
        a, b = jax.random.split(key)
        self.table, self.outer = eqx.nn.Embedding(5, 2, key=a), eqx.nn.Linear(2, 2, key=b)
        self.scale = scale

    def __call__(self, ids):
        return self.outer(self.scale * jax.vmap(self.table)(ids).mean(0))


TOKENS = bnn.Network.from_equinox(Tokens)
IDS = np.random.default_rng(0).integers(5, size=(12, 4))
CASES: dict[str, dict[str, Any]] = {
    "generators": {},
    "float64": {"dtype": "float64", "members": 1},
    "one member": {"members": 1, "method": "mfvi"},
    "particles": {"members": 2, "method": gpvi.SVGD(particles=4), "likelihood": bnn.Poisson(), "y": LABELS},
    "noise of a prior": {
        "members": 1,
        "method": gpvi.SVGD(particles=4),
        "likelihood": bnn.Gaussian(bnn.LogNormal(0.2, 0.5)),
    },
    "token ids": {
        "network": TOKENS,
        "likelihood": "categorical",
        "X": IDS,
        "y": LABELS,
        "method": gpvi.SVGD(particles=4),
        "members": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", some_slow(CASES, fast=("generators", "particles", "one member")))
def test_predictions_are_the_same_after_a_trip_through_files(name, whole, tmp_path):
    options = CASES[name]
    made = fit(**options) if options else whole
    made.save(tmp_path / "saved")
    found = bnn.load(tmp_path / "saved", made.network)
    inputs, y = options.get("X", X), options.get("y", Y)
    assert bits(found) == bits(made)
    assert found.likelihood == made.likelihood
    for compute in (
        lambda each: each.predict(inputs, key=KEY),
        lambda each: each.log_prob(inputs, y, key=KEY),
    ):
        for a, b in zip(*(jax.tree.leaves(compute(each)) for each in (made, found)), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    found.save(tmp_path / "again")
    assert bits(bnn.load(tmp_path / "again", made.network)) == bits(made)


@pytest.fixture(scope="module")
def saved(whole, tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "predictive"
    whole.save(directory)
    return directory


def renamed(parameters, x):
    return jnp.tanh(x @ parameters["a"] + parameters["b"]) @ parameters["c"] + parameters["d"]


def drawn(key):
    return {"a": jnp.zeros((2, 3)), "b": jnp.zeros(3), "c": jnp.zeros((3, 1)), "d": jnp.zeros(1)}


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (bnn.mlp((2, 4, 1), "tanh"), "has 17 weights, and the one that was trained had 13"),
        (bnn.mlp((2, 3, 1), "relu"), "other outputs for the same weights"),
        (bnn.mlp((2, 3, 1), "silu"), "other outputs for the same weights"),
        (bnn.Network.from_functions(drawn, renamed), r"an array 'a' of shape \(2, 3\) where"),
        (Tokens, "network is .*from_equinox"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_another_network_is_refused(network, words, saved):
    with pytest.raises(InputError, match=words):
        bnn.load(saved, network)


@pytest.fixture
def unchecked(monkeypatch):
    """What the checkers of the tests would refuse by itself."""
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.slow
def test_another_order_of_inputs_and_other_constants_are_refused(saved, tmp_path):
    def swapped(parameters, x):
        return NETWORK.definition.apply(parameters, x[:, ::-1])

    other = bnn.Network.from_functions(NETWORK.definition.init, swapped)
    with pytest.raises(InputError, match="the order of its inputs"):
        bnn.load(saved, other)
    made = fit(TOKENS, **{k: v for k, v in CASES["token ids"].items() if k != "network"})
    made.save(tmp_path / "tokens")
    with pytest.raises(InputError, match="its constants may have changed"):
        bnn.load(tmp_path / "tokens", bnn.Network.from_equinox(lambda key: Tokens(key, scale=1.01)))
    assert bnn.load(tmp_path / "tokens", bnn.Network.from_equinox(Tokens))


def test_a_network_made_anew_is_the_same(saved, whole):
    assert bits(bnn.load(saved, bnn.mlp((2, 3, 1), "tanh"))) == bits(whole)


def test_a_likelihood_of_ones_own_is_asked_for(whole, tmp_path):
    made = bnn.Predictive(whole.members, NETWORK, Wide())
    made.save(tmp_path / "saved")
    with pytest.raises(InputError, match=r"Wide, is of a class of your own.*likelihood=Wide\(…\)"):
        bnn.load(tmp_path / "saved", NETWORK)
    for other in (Wide(factor=3.0), "gaussian"):
        with pytest.raises(InputError, match="another mean or variance"):
            bnn.load(tmp_path / "saved", NETWORK, likelihood=other)
    with pytest.raises(InputError, match="1 coordinates beside the 13 weights"):
        bnn.load(tmp_path / "saved", NETWORK, likelihood=bnn.Gaussian(noise=0.1))
    found = bnn.load(tmp_path / "saved", NETWORK, likelihood=Wide())
    np.testing.assert_array_equal(
        found.predict(X, key=KEY).variance, made.predict(X, key=KEY).variance
    )


def test_a_likelihood_that_was_saved_stays(saved):
    assert bnn.load(saved, NETWORK, likelihood="gaussian").likelihood == bnn.Gaussian()
    with pytest.raises(InputError, match="was saved: leave it out"):
        bnn.load(saved, NETWORK, likelihood="poisson")


def test_inputs_are_asked_for_where_nothing_knows_their_shape(whole, tmp_path):
    whole.posterior.save(tmp_path / "one")
    alone = bnn.Predictive(gpvi.load(tmp_path / "one"), NETWORK, "gaussian")
    with pytest.raises(NotAvailableError, match="X=X"):
        alone.save(tmp_path / "saved")
    alone.save(tmp_path / "saved", X=X[:1])
    found = bnn.load(tmp_path / "saved", NETWORK)
    np.testing.assert_array_equal(found.predict(X, key=KEY).mean, alone.predict(X, key=KEY).mean)


def test_an_estimator_can_save_what_it_predicts(tmp_path):
    model = bnn.BayesianMLPRegressor(3, method="mfvi", steps=5, random_state=0).fit(X, Y)
    model.predictive_.save(tmp_path / "saved")
    found = bnn.load(tmp_path / "saved", model.network_)
    assert bits(found) == bits(model.predictive_)


def test_each_kind_of_file_names_its_reader(saved, whole, tmp_path):
    with pytest.raises(StorageError, match=r"gpvi\.bnn\.load"):
        gpvi.load(saved)
    whole.posterior.save(tmp_path / "one")
    with pytest.raises(StorageError, match=r"gpvi\.load"):
        bnn.load(tmp_path / "one", NETWORK)
    with pytest.raises(StorageError, match="cannot be read"):
        bnn.load(tmp_path / "nothing", NETWORK)


@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9])
def test_damaged_files_are_refused(place, saved, tmp_path):
    content = bytearray(saved.read_bytes())
    content[int(place * len(content))] ^= 1
    (tmp_path / "saved").write_bytes(content)
    with pytest.raises(StorageError, match=str(tmp_path)):
        bnn.load(tmp_path / "saved", NETWORK)


DAMAGES = {
    "no members": put("members", value=[]),
    "members null": put("members", value=None),
    "members number": put("members", value=[3]),
    "member of another dimension": put("members", 1, "dim", value=13),
    "member of another method": put("members", 1, "method", value={"type": "SVGD"}),
    "member more": lambda document, arrays: document["members"].append(document["members"][0]),
    "likelihood is a method": put("likelihood", value={"type": "SVGD"}),
    "likelihood text": put("likelihood", value="gaussian"),
    "likelihood unknown": put("likelihood", value={"type": "os.system"}),
    "likelihood invalid": put("likelihood", "start_noise", value=-1),
    "class number": put("likelihood_class", value=3),
    "sharpness text": put("sharpness", value="1.0"),
    "sharpness zero": put("sharpness", value=0.0),
    "sharpness null": put("sharpness", value=None),
    "sharpness true": put("sharpness", value=True),
    "sharpness infinite": put("sharpness", value=float("inf")),
    "network null": put("network", value=None),
    "no leaves": put("network", "leaves", value=[]),
    "leaves text": put("network", "leaves", value=["ab"]),
    "leaves negative": put("network", "leaves", value=[["a", [-1]]]),
    "input negative": put("network", "input_shape", value=[-2]),
    "input huge": put("network", "input_shape", value=[10**12]),
    "input true": put("network", "input_shape", value=[True]),
    "whole text": put("network", "whole_inputs", value="no"),
    "no outputs": array("network/outputs", None),
    "outputs whole": array("network/outputs", np.zeros((3, 1), np.int32)),
    "outputs flat": array("network/outputs", np.zeros(3, np.float32)),
    "no variance": array("network/variance", None),
    "no location": array("members/1/affine.location", None),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_documents_that_mean_nothing_are_refused(name, saved, tmp_path):
    document, arrays = copy.deepcopy(storage.read(saved))
    DAMAGES[name](document, arrays)
    storage.write(tmp_path / "saved", document, arrays)
    with pytest.raises(StorageError):
        bnn.load(tmp_path / "saved", NETWORK)


@pytest.mark.slow
def test_files_keep_the_sharpness_and_those_without_have_none(tmp_path):
    made = fit(CLASSES, "categorical", LABELS)
    made.save(tmp_path / "saved")
    assert bnn.load(tmp_path / "saved", CLASSES).sharpness == made.sharpness != 1
    document, arrays = storage.read(tmp_path / "saved")
    del document["sharpness"]
    storage.write(tmp_path / "older", document, arrays)
    assert bnn.load(tmp_path / "older", CLASSES).sharpness == 1


def test_no_value_of_the_data_is_saved(saved):
    values = {value for a in storage.read(saved)[1].values() for value in a.ravel().tolist()}
    assert not values & set(X.astype(np.float32).ravel().tolist())
