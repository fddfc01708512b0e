"""What a network predicts as a directory of safetensors and JSON: its posteriors, and what tells the network again."""

import math
import os
from typing import Any, NamedTuple

import numpy as np

from gpvi import specs
from gpvi.bnn.likelihoods import Likelihood
from gpvi.bnn.prediction._fingerprints import Fingerprint, Row
from gpvi.errors import InputError, StorageError
from gpvi.persistence import format as storage
from gpvi.posterior import saving
from gpvi.posterior.saving import MEMBERS

WHAT = "the predictive distribution of a network"
MOST_INPUTS = 2**28
"""Numbers in one input of a network that is loaded."""


class Saved(NamedTuple):
    """What is saved of a predictive distribution: all of it but the network, and a likelihood of the user's own."""

    members: tuple[saving.Saved, ...]
    likelihood: Likelihood | None
    """None where it is of a class of the user's own."""
    called: str
    """The name of its class."""
    row: Row
    fingerprint: Fingerprint
    sharpness: float = 1.0

    def chosen(self, given: Likelihood | None) -> Likelihood:
        """The likelihood that was saved, or the one that is given in its place where none was."""
        if self.likelihood is None and given is None:
            raise InputError(
                f"the likelihood, {self.called}, is of a class of your own, and files hold no code: pass it, "
                f"gpvi.bnn.load(directory, network, likelihood={self.called}(…))."
            )
        if self.likelihood is not None and given not in (None, self.likelihood):
            raise InputError(
                f"likelihood is {given!r}, and {self.likelihood!r} was saved: leave it out."
            )
        return self.likelihood if given is None else given  # pyright: ignore[reportReturnType]


def storable(likelihood: Likelihood) -> Likelihood | None:
    """The likelihood, where a file can hold it: not one of a class of the user's own."""
    try:
        specs.to_json(likelihood)
    except InputError:
        return None
    return likelihood


def write(saved: Saved, directory: str | os.PathLike[str]) -> None:
    """Write a directory that `read` reads."""
    mark = saved.fingerprint
    arrays = {f"network/{name}": getattr(mark, name) for name in ("outputs", "mean", "variance")}
    documents = []
    for number, member in enumerate(saved.members):
        document, own = saving.to_document(member, saving.LISTED // len(saved.members))
        documents.append(document)
        arrays |= {f"{_prefix(number)}{name}": array for name, array in own.items()}
    document = {
        MEMBERS: documents,
        "likelihood": specs.to_json(saved.likelihood),
        "likelihood_class": saved.called,
        "sharpness": saved.sharpness,
        "network": {
            "leaves": [[name, list(shape)] for name, shape in mark.leaves],
            "input_shape": list(saved.row.shape),
            "whole_inputs": saved.row.whole,
        },
    }
    storage.write(directory, document, arrays)


def read(directory: str | os.PathLike[str]) -> Saved:
    """What `write` wrote; nothing in the files is executed."""
    document, arrays = storage.read(directory)
    if MEMBERS not in document:
        raise StorageError(
            f"{directory} does not hold {WHAT}. If it is a single posterior, read it with gpvi.load(directory), and "
            "make gpvi.bnn.Predictive(posterior, network, likelihood) of it."
        )
    with saving.understood(directory, WHAT):
        return _from_document(document, arrays)


def _from_document(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Saved:
    likelihood = specs.from_json(document["likelihood"])
    _expect(likelihood is None or isinstance(likelihood, Likelihood), "its likelihood is none")
    called, network = document["likelihood_class"], document["network"]
    _expect(isinstance(called, str), "its likelihood has no name")
    leaves = tuple((name, tuple(shape)) for name, shape in network["leaves"])
    row = Row(tuple(network["input_shape"]), network["whole_inputs"])
    numbers = [*row.shape, *(length for _, shape in leaves for length in shape)]
    _expect(all(type(each) is int and each >= 0 for each in numbers), "its shapes are none")
    _expect(math.prod(row.shape) <= MOST_INPUTS, "its inputs are too large")
    _expect(all(isinstance(name, str) for name, _ in leaves), "its arrays have no names")
    _expect(len(leaves) > 0 and isinstance(row.whole, bool), "its network is none")
    outputs, *moments = (arrays[f"network/{name}"] for name in ("outputs", "mean", "variance"))
    _expect(
        all(a.ndim == 2 and a.dtype.kind == "f" for a in (outputs, *moments)),
        "its outputs are none",
    )
    members = tuple(
        saving.from_document(each, _own(arrays, number))
        for number, each in enumerate(document[MEMBERS])
    )
    _expect(len(members) > 0, "it has no members")
    sharpness = document.get("sharpness", 1.0)  # files of earlier versions have none
    right = type(sharpness) is float and math.isfinite(sharpness) and sharpness > 0
    _expect(right, "its sharpness is no positive number")
    mark = Fingerprint(leaves, outputs, *moments)
    return Saved(members, likelihood, called, row, mark, sharpness)


def _own(arrays: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """The arrays of one member, by their own names."""
    prefix = _prefix(number)
    return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}


def _prefix(number: int) -> str:
    return f"{MEMBERS}/{number}/"


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StorageError(f"the saved document is not of {WHAT}: {otherwise}.")
