"""A posterior as a file of arrays and JSON, written and read without its target."""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from gpvi import specs
from gpvi._inputs import precision
from gpvi.diagnostics.missing_mass import InitialEvidence
from gpvi.errors import StorageError
from gpvi.generators import AbstractGenerator, Triangular
from gpvi.generators.triangular import HEAD
from gpvi.methods import Method
from gpvi.methods.carriers import Particles, Sampler
from gpvi.persistence import format as storage
from gpvi.persistence.untrusted import json_strings
from gpvi.posterior import naming
from gpvi.posterior.history import Training
from gpvi.posterior.naming import Naming
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine, Kind
from gpvi.targets.target import Target

Parts = tuple[AbstractGenerator | Particles, Affine, PyTree]
"""The model, its coordinates, and what a solver, critic or sampler has learned."""
PREFIXES = ("model", "affine", "auxiliary")
MOST_LAYERS = 1_000
"""Most layers of a generator that is loaded: finding the shape of each takes time."""
MEMBERS = "members"
"""The key of a document with several posteriors, as `gpvi.bnn.Predictive` saves them."""
TRAINED = "trained"
"""The key of the document of a generator that Markov chains started from, and the prefix of its arrays."""
LISTED = 10_000
"""More names than this are saved as an array, so that people can still read the document."""


class Saved(NamedTuple):
    """What a file holds of a posterior: everything but the target."""

    method: Method
    model: AbstractGenerator | Particles
    start: Start
    names: tuple[str, ...]
    training: Training
    auxiliary: PyTree
    naming: Naming
    trained: "Saved | None" = None
    """The generator that Markov chains started from."""

    @classmethod
    def of(cls, posterior: Any) -> "Saved":
        """Take what is saved from a `Posterior`."""
        own = cls(*(getattr(posterior, name) for name in cls._fields))
        return own if own.trained is None else own._replace(trained=cls.of(own.trained))


def write(saved: Saved, path: str | os.PathLike[str]) -> None:
    """Write a file that `read` reads."""
    storage.write(path, *to_document(saved, LISTED))


def to_document(saved: Saved, listed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a posterior as a document and arrays, with at most `listed` names in the document."""
    training, start = saved.training, saved.start
    location = start.affine.location
    parts = (saved.model, start.affine, saved.auxiliary)
    arrays = {name: np.asarray(leaf) for name, leaf in _named_arrays(parts)}
    history = {f"history/{name}": values for name, values in training.history.items()}
    names = list(saved.names)
    if len(names) > listed:
        arrays["names"] = np.frombuffer(json.dumps(names).encode(), np.uint8)
    document = {
        "method": specs.to_json(saved.method),
        "dim": len(location),
        "dtype": np.dtype(location.dtype).name,
        "names": names if len(names) <= listed else None,
        "naming": naming.to_json(saved.naming),
        "affine": start.affine.kind,
        "training": {
            "steps": training.steps,
            "planned": training.planned,
            "seconds": training.seconds,
            "notes": list(training.notes),
            "start": start.report,
            "chosen": training.chosen,
            "gradients": training.gradients,
            "evidence": start.evidence,
            "history": list(training.history),
        },
    }
    if saved.trained is not None:
        document[TRAINED], own = to_document(saved.trained, listed)
        arrays |= {f"{TRAINED}/{name}": array for name, array in own.items()}
    return document, arrays | history


def read(path: str | os.PathLike[str], classes: Iterable[Any] = ()) -> Saved:
    """Read what `write` wrote; nothing in the file is executed, and no target is needed."""
    known = specs.known_classes(classes)
    document, arrays = storage.read(path)
    if MEMBERS in document:
        raise StorageError(
            f"{path} holds what a network predicts, and not a single posterior: read it with "
            "gpvi.bnn.load(path, network)."
        )
    with understood(path, "a posterior"):
        return from_document(document, arrays, known)


@contextmanager
def understood(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn any error that a foreign document causes into a `StorageError`."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        raise StorageError(
            f"{path} does not hold {what} that this version of gpvi can read: {repr(error)[:500]}. "
            "It may come from another version, or have been edited."
        ) from error


def from_document(
    document: dict[str, Any],
    arrays: dict[str, np.ndarray],
    known: Mapping[str, type] | None = None,
) -> Saved:
    """Read what `to_document` wrote, with instances of `known` classes only; by default all registered ones."""
    _expect(_layers(document["method"]) <= MOST_LAYERS, "it has too many layers")
    method, training = specs.from_json(document["method"], known), document["training"]
    dim, dtype = document["dim"], document["dtype"]
    _expect(isinstance(method, Method), f"method is {method!r}")
    _expect(type(dim) is int and dim >= 1, f"dim is {dim!r}")
    _expect(dtype in ("float32", "float64"), f"dtype is {dtype!r}")
    listed = document["names"]
    names = tuple(json_strings(arrays["names"].tobytes(), dim) if listed is None else listed)
    _expect(len(names) == dim and all(isinstance(name, str) for name in names), "names do not fit")
    how = _naming(document, names, known)
    _expect(document["affine"] in get_args(Kind), f"affine is {document['affine']!r}")
    history = {name: arrays[f"history/{name}"] for name in training["history"]}
    record = Training(
        steps=training["steps"],
        planned=training["planned"],
        seconds=training["seconds"],
        history=history,
        notes=tuple(training["notes"]),
        chosen=training.get("chosen", ""),
        gradients=training.get("gradients"),
    )
    _expect(record.gradients is None or type(record.gradients) is int, "gradients do not fit")
    _expect(type(record.steps) is int and type(record.planned) is int, "training.steps do not fit")
    _expect(isinstance(record.seconds, int | float), "training.seconds does not fit")
    _expect(
        all(isinstance(text, str) for text in (*record.notes, training["start"], record.chosen)),
        "notes do not fit",
    )
    _expect(
        all(values.shape == (record.steps,) for values in history.values()), "history does not fit"
    )
    with precision(dtype):
        method = _as_saved(method, dim, arrays)
        parts = _filled(method, dim, np.dtype(dtype), document["affine"], arrays)
    model, affine, auxiliary = parts
    start = Start(affine, training["start"], InitialEvidence.from_json(training.get("evidence")))
    trained = None
    if TRAINED in document:
        inner, first = document[TRAINED], f"{TRAINED}/"
        _expect(
            TRAINED not in inner, "a generator that chains started from is itself made of chains"
        )
        own = {name[len(first) :]: a for name, a in arrays.items() if name.startswith(first)}
        trained = from_document(inner, own, known)
        _expect(len(trained.names) == dim, "its generator has another dimension")
    return Saved(method, model, start, names, record, auxiliary, how, trained)


def _as_saved(method: Method, dim: int, arrays: dict[str, np.ndarray]) -> Method:
    """Return the method with the head size of its file: an unstated size once meant at most 64 coordinates."""
    generator = getattr(method, "generator", None)
    if not isinstance(generator, Triangular) or generator.latent is not None:
        return method
    has_a_tail = any(name.startswith("model.network.") for name in arrays)
    if not has_a_tail or dim <= HEAD or generator.head_size(dim) < dim:
        return method
    former = dataclasses.replace(generator, latent=HEAD)
    return dataclasses.replace(cast(Any, method), generator=former)


def _naming(
    document: dict[str, Any], names: tuple[str, ...], known: Mapping[str, type] | None
) -> Naming:
    """Return how draws are named; files of earlier versions do not say it."""
    if "naming" not in document:
        return naming.naming_of_names(names)
    how = specs.from_json(document["naming"], known)
    _expect(naming.is_naming(how, document["dim"]), "naming does not fit")
    return how


def _layers(specification: Any) -> int | float:
    """Return an upper bound on the number of layers that a specification names."""
    if isinstance(specification, list):
        return len(specification) + sum(map(_layers, specification))
    if not isinstance(specification, dict):
        return 0
    named = (specification.get(name) for name in ("layers", "depth", "hidden_layers"))
    own = sum(value for value in named if isinstance(value, int | float))
    return own + sum(map(_layers, specification.values()))


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StorageError(f"the saved document is not of a posterior: {otherwise[:200]}.")


def _filled(
    method: Method, dim: int, dtype: np.dtype, affine_kind: Kind, arrays: dict[str, np.ndarray]
) -> Parts:
    """Return the parts of a posterior with the stored arrays in their leaves; their shapes must agree.

    The parts are built abstractly, to learn their shapes. What a solver or critic has learned is None if the file does
    not hold it.
    """
    import optax

    # building a model needs no more of a target than this
    shape = Target(jnp.sum, dim, dtype=dtype)

    left = arrays.get("affine.scale.left")
    rank = 0 if left is None or left.ndim != 2 else left.shape[1]

    def build() -> Parts:
        learner, auxiliary = method.init(shape, optax.sgd(0.0), key=jax.random.key(0))
        model = learner.model
        model = model.generator if isinstance(model, Sampler) else model
        return model, Affine.form(affine_kind, dim, rank=rank, dtype=dtype), auxiliary

    form = eqx.filter_eval_shape(build)
    if not any(name.startswith("auxiliary") for name in arrays):
        form = (*form[:2], None)
    for name, leaf in _named_arrays(form):
        stored = arrays.get(name)
        if stored is None or stored.shape != leaf.shape or stored.dtype != leaf.dtype:
            found = "none" if stored is None else f"{stored.dtype}{list(stored.shape)}"
            raise StorageError(
                f"the saved array {name} does not fit {str(method)[:500]}: expected {leaf.dtype}{list(leaf.shape)}, "
                f"found {found}."
            )
    filled = {name: jnp.asarray(arrays[name]) for name, _ in _named_arrays(form)}
    return tuple(  # pyright: ignore[reportReturnType]
        jax.tree_util.tree_map_with_path(
            lambda path, leaf, prefix=prefix: filled.get(prefix + jax.tree_util.keystr(path), leaf),
            tree,
        )
        for prefix, tree in zip(PREFIXES, form, strict=True)
    )


def _named_arrays(parts: Parts) -> list[tuple[str, Any]]:
    """Return every array leaf with a name made of its path."""
    return [
        (prefix + jax.tree_util.keystr(path), leaf)
        for prefix, tree in zip(PREFIXES, parts, strict=True)
        for path, leaf in jax.tree.leaves_with_path(tree)
        if eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    ]
