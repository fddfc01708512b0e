"""Predictive distributions in files.

A file holds the posteriors, the likelihood, the sharpness, and a fingerprint by which the network is recognised.
"""

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpvi import specs
from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.prediction._fingerprints import Fingerprint, InputForm
from gpvi.errors import InputError, StorageError
from gpvi.persistence import format as storage
from gpvi.posterior import saving
from gpvi.posterior.saving import MEMBERS

WHAT = "the predictive distribution of a network"
FINGERPRINT = ("outputs", "mean", "variance")
MOST_INPUTS = 2**28
"""The largest number of entries that one input of a loaded network may have."""


class Saved(NamedTuple):
    """What is saved of a predictive distribution: all but the network."""

    members: tuple[saving.Saved, ...]
    likelihood: Likelihood | None
    """None if its class is the user's own and not registered for saving."""
    likelihood_class: str
    inputs: InputForm
    fingerprint: Fingerprint
    sharpness: float = 1.0

    def likelihood_or(self, passed: Likelihood | None) -> Likelihood:
        """Return the likelihood that was saved, or the one passed to `load` if none was."""
        if self.likelihood is not None:
            if passed not in (None, self.likelihood):
                raise InputError(
                    f"likelihood is {passed!r}, and {self.likelihood!r} was saved: leave it out."
                )
            return self.likelihood
        if passed is None:
            name = self.likelihood_class[:200]
            raise InputError(
                f"the likelihood, {name}, is of a class of your own, and files hold no code: pass it, "
                f"gpvi.bnn.load(path, network, likelihood={name}(…))."
            )
        return passed


def storable(likelihood: Likelihood) -> Likelihood | None:
    """Return the likelihood if a file can hold it; None if its class is not registered by `gpvi.specs.spec`."""
    try:
        specs.to_json(likelihood)
    except InputError:
        return None
    return likelihood


def write(saved: Saved, path: str | os.PathLike[str]) -> None:
    """Write a file that `read` reads."""
    fingerprint = saved.fingerprint
    arrays = {f"network/{name}": getattr(fingerprint, name) for name in FINGERPRINT}
    documents = []
    for number, member in enumerate(saved.members):
        document, own = saving.to_document(member, saving.LISTED // len(saved.members))
        documents.append(document)
        arrays |= {f"{_prefix(number)}{name}": array for name, array in own.items()}
    document = {
        MEMBERS: documents,
        "likelihood": specs.to_json(saved.likelihood),
        "likelihood_class": saved.likelihood_class,
        "sharpness": saved.sharpness,
        "network": {
            "leaves": [[name, list(shape)] for name, shape in fingerprint.leaves],
            "input_shape": list(saved.inputs.shape),
            "whole_inputs": saved.inputs.integers,
        },
    }
    storage.write(path, document, arrays)


def read(path: str | os.PathLike[str], classes: Iterable[Any] = ()) -> Saved:
    """Read what `write` wrote; nothing in the file is executed."""
    known = specs.known_classes(classes)
    document, arrays = storage.read(path)
    if MEMBERS not in document:
        raise StorageError(
            f"{path} does not hold {WHAT}. If it is a single posterior, read it with gpvi.load(path), and "
            "make gpvi.bnn.Predictive(posterior, network, likelihood) of it."
        )
    with saving.understood(path, WHAT):
        return _from_document(document, arrays, known)


def _from_document(
    document: dict[str, Any], arrays: dict[str, np.ndarray], known: Mapping[str, type]
) -> Saved:
    likelihood = specs.from_json(document["likelihood"], known)
    _expect(likelihood is None or isinstance(likelihood, Likelihood), "its likelihood is none")
    likelihood_class, network = document["likelihood_class"], document["network"]
    _expect(isinstance(likelihood_class, str), "its likelihood has no name")
    leaves = tuple((name, tuple(shape)) for name, shape in network["leaves"])
    form = InputForm(tuple(network["input_shape"]), network["whole_inputs"])
    lengths = [*form.shape, *(length for _, shape in leaves for length in shape)]
    _expect(all(type(each) is int and each >= 0 for each in lengths), "its shapes are none")
    _expect(math.prod(form.shape) <= MOST_INPUTS, "its inputs are too large")
    _expect(all(isinstance(name, str) for name, _ in leaves), "its arrays have no names")
    _expect(len(leaves) > 0 and isinstance(form.integers, bool), "its network is none")
    outputs, *moments = (arrays[f"network/{name}"] for name in FINGERPRINT)
    _expect(
        all(a.ndim == 2 and a.dtype.kind == "f" for a in (outputs, *moments)),
        "its outputs are none",
    )
    members = tuple(
        saving.from_document(each, _arrays_of_member(arrays, number), known)
        for number, each in enumerate(document[MEMBERS])
    )
    _expect(len(members) > 0, "it has no members")
    sharpness = document.get("sharpness", 1.0)  # files of earlier versions have none
    positive = type(sharpness) is float and math.isfinite(sharpness) and sharpness > 0
    _expect(positive, "its sharpness is no positive number")
    fingerprint = Fingerprint(leaves, outputs, *moments)
    return Saved(members, likelihood, likelihood_class, form, fingerprint, sharpness)


def _arrays_of_member(arrays: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """Return the arrays of one member, without the prefix of their names."""
    prefix = _prefix(number)
    return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}


def _prefix(number: int) -> str:
    return f"{MEMBERS}/{number}/"


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StorageError(f"the saved document is not of {WHAT}: {otherwise}.")
