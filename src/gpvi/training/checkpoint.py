"""Checkpoints: an interrupted run resumes from the newest intact one, as if it had never stopped.

A checkpoint is a file written atomically by `gpvi.persistence.format`, with a checksum. It holds the state, the
previous state (to rewind to), what every step reported, and the identity of the run: the method, the plan, the key, a
hash of the data, a hash of the traced program, and log p at a few points. Step t draws from keys folded from t, so
nothing else is needed to continue bit for bit on the same hardware.
"""

import dataclasses
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from gpvi import specs
from gpvi.diagnostics.importance import Importance
from gpvi.diagnostics.missing_mass import InitialEvidence
from gpvi.errors import InputError, OtherRunError, StorageError, TrainingWarning, brief, warn
from gpvi.methods import Method
from gpvi.parallel import hosts
from gpvi.persistence import format as storage
from gpvi.persistence import lock
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine, Whitened
from gpvi.targets.semiseparable import Semiseparable
from gpvi.targets.target import Target
from gpvi.training.program import Plan, Program
from gpvi.training.recovery import Run
from gpvi.training.stopping import Assessment, Outlook

KEPT = 2
"""Checkpoints kept per attempt: the newest, and the previous one in case the newest is damaged."""
PAUSE = 60.0
"""Minimum seconds between saves when `every` is not given."""
SHARE = 0.05
"""Maximum share of the time spent on saving in that case."""
PROBES = 3
PROBE_TOLERANCE = 1e-3
MALFORMED = (StorageError, KeyError, IndexError, TypeError, ValueError, OverflowError)
"""Errors that reading a document not written by `save` may raise."""
_NAME = re.compile(r"attempt-(\d{1,3})-step-(\d{1,12})")


def identity(
    targets: Sequence[Target],
    density: Whitened,
    plan: Plan,
    program: Program,
    arrays: PyTree,
    init: Any,
    key: PRNGKeyArray,
    batches: PyTree = None,
) -> dict[str, str]:
    """Return what must agree for a run to be the same run, by the name used in messages."""
    return {
        **asked(targets, plan.method, (plan.steps, plan.rounds), plan.batch_size, key),
        "init": _init_digest(init),
        "program": _digest(program.text(arrays, density, key, batches).encode()),
    }


def asked(
    targets: Sequence[Target],
    method: Method,
    steps: int | tuple[int, tuple[int, ...]],
    batch_size: int | None,
    key: PRNGKeyArray,
) -> dict[str, str]:
    """Return the part of the identity that is known before anything is traced."""
    data = [_data_digest(target) for target in {id(target): target for target in targets}.values()]
    return {
        "method": repr(specs.to_json(method)),
        "number of steps": repr(steps),
        "batch size": repr(batch_size),
        "key": np.asarray(jax.random.key_data(key)).tobytes().hex(),
        "data": data[0] if len(data) == 1 else _digest(*map(str.encode, data)),
    }


def probes(target: Target) -> list[float]:
    """Return log p at a few points that depend only on the target; streamed data are sampled."""
    points = target.starting_points(PROBES, key=jax.random.key(0))
    some = target.subsample()
    return [float(target.log_density(point, some)) for point in points]


def _array_name(path: Any) -> str:
    """Return the name in a file of an array of the coordinates, such as "affine.scale"."""
    return "affine" + jax.tree_util.keystr(path)


def _form_of(arrays: Mapping[str, np.ndarray], dim: int, leading: int) -> Affine:
    """Return the shapes of stored coordinates, which have so many axes before their own."""
    scale, left = arrays.get("affine.scale"), arrays.get("affine.scale.left")
    if scale is None and left is not None:
        return jax.eval_shape(lambda: Affine.form("semiseparable", dim, rank=left.shape[-1]))
    dense = scale is not None and scale.ndim == leading + 2
    return jax.eval_shape(lambda: Affine.form("dense" if dense else "diagonal", dim))


def _affines(
    arrays: Mapping[str, np.ndarray], dim: int, dtype: np.dtype, seeds: int | None
) -> list[Affine] | None:
    """Return stored coordinates, one for each of the seeds; None if they do not fit the target."""
    leading = () if seeds is None else (seeds,)
    form = _form_of(arrays, dim, len(leading))
    stored = {_array_name(path): leaf for path, leaf in jax.tree.leaves_with_path(form)}
    for name, leaf in stored.items():
        found = arrays.get(name)
        if found is None or found.shape != (*leading, *leaf.shape) or found.dtype != dtype:
            return None
    each = {name: arrays[name] if leading else arrays[name][None] for name in stored}
    return [
        jax.tree_util.tree_map_with_path(
            lambda path, _, seed=seed: jnp.asarray(each[_array_name(path)][seed]), form
        )
        for seed in range(seeds or 1)
    ]


def _init_digest(init: Any) -> str:
    """Return the string itself, or a hash of the points or posteriors that training starts from."""
    if init is None or isinstance(init, str):
        return repr(init)
    if isinstance(init, Sequence):
        return _digest(*(_init_digest(each).encode() for each in init))
    arrays = init if isinstance(init, jax.Array | np.ndarray) else (init.model, init.affine)
    leaves = jax.tree.leaves(eqx.filter(arrays, eqx.is_array_like))
    leaves = [_plain(jnp.asarray(leaf)) for leaf in leaves]
    return _digest(*(leaf.tobytes() for leaf in leaves))


def _data_digest(target: Target) -> str:
    """A hash of all data in memory, or of a bounded part of streamed data (see `Stream.digest`)."""
    if target.stream is not None:
        return target.stream.digest()
    leaves = [leaf for leaf in jax.tree.leaves(target.data) if eqx.is_array(leaf)]
    shapes = [f"{leaf.dtype}{leaf.shape}" for leaf in leaves]
    mine = [part.tobytes() for leaf in leaves for part in hosts.local_parts(leaf)]
    digest = _digest(*map(str.encode, shapes), *mine)
    return (
        digest if all(leaf.is_fully_addressable for leaf in leaves) else hosts.joint_digest(digest)
    )


def _digest(*parts: bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


class Checkpoints:
    """The checkpoints of one run in one directory."""

    def __init__(self, directory: str | os.PathLike[str], every: int | None = None):
        if every is not None and (not specs.is_whole(every) or every < 1):
            raise InputError(f"every is {brief(every)}; give the number of steps, ≥ 1, or omit it.")
        self.directory = _as_directory(directory)
        self.every = every
        self._saved_at, self._saved_step = time.monotonic(), 0
        self._who: dict[str, Any] = {}
        self._coordinates: dict[str, np.ndarray] = {}
        self._failed = False
        self._pause = PAUSE
        self._passed: dict[int, set[int]] = {}
        """For each attempt, the steps whose checkpoints were damaged and skipped."""
        self._locks = ExitStack()
        self._locked: os.stat_result | None = None
        """The directory that was locked; another one may have taken its place since."""
        self.told: set[str] = set()
        """Notes already given to the user as warnings."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out other processes, and remove partial saves of killed ones.

        A missing directory that cannot be created is refused; if it cannot be locked the user is warned.
        """
        if not hosts.first():
            yield
            return
        with ExitStack() as self._locks:
            trouble = self._locks.enter_context(lock.locked(self.directory))
            if trouble is None:
                self._locked = os.stat(self.directory)
                storage.sweep(self.directory)
            elif not self.directory.is_dir():
                raise InputError(
                    f"checkpoint is {str(self.directory)!r}, which cannot be created: {trouble.strerror}. Pass "
                    "a writable directory, or omit it."
                ) from trouble
            else:
                warn(
                    f"{self.directory} cannot be locked: {trouble.strerror}. If it is not writable, nothing will be "
                    "saved; if it is, let no other run use it.",
                    TrainingWarning,
                )
            yield

    def starts(self, target: Target, seeds: int | None = None) -> list[Start] | None:
        """Return the starts of a run already begun; None if there is none, or it does not fit the target.

        A run of several `seeds` has one start for each, and its arrays have a first axis for them.
        """
        for attempt in range(len(self._steps()) + 1):
            for _, document, arrays in self._intact(attempt, {}):
                if not document["start"]:
                    return None
                affines = _affines(arrays, target.dim, target.dtype, seeds)
                if affines is None:
                    return None
                evidence = [InitialEvidence.from_json(stored) for stored in document["evidence"]]
                if not len(affines) == len(document["start"]) == len(evidence):
                    return None
                return list(map(Start, affines, document["start"], evidence))
        return None

    def identify(
        self,
        who: Mapping[str, str],
        probed: list[float],
        starts: Sequence[Start] = (),
        *,
        stacked: bool = False,
    ) -> None:
        """Set which run this is, before anything is saved or resumed; `stacked` starts are those of several seeds."""
        self._who = {
            "identity": dict(who),
            "probes": probed,
            "start": [start.report for start in starts],
            "evidence": [start.evidence for start in starts],
        }
        leaves = [jax.tree.leaves_with_path(start.affine) for start in starts]
        for each in zip(*leaves, strict=True):
            arrays = [np.asarray(leaf) for _, leaf in each]
            self._coordinates[_array_name(each[0][0])] = np.stack(arrays) if stacked else arrays[0]

    def resumed(self, attempt: int, fresh: Run) -> Run:
        """Return the run of this attempt from the newest intact checkpoint; `fresh` if there is none."""
        passed: dict[int, Exception] = {}
        for step, document, arrays in self._intact(attempt, passed):
            self._check_same(document)
            try:
                run = _decoded(document, arrays, fresh)
            except MALFORMED as error:
                passed[step] = error
                continue
            break
        else:
            run = fresh
        hosts.require_agreement(
            run.done, f"the processes found different checkpoints in {self.directory}: share it"
        )
        for step, error in passed.items():
            run.warn(f"the checkpoint of step {step} is damaged and was skipped: {error}")
        self._passed[attempt] = set(passed)
        self._saved_at, self._saved_step = time.monotonic(), run.done
        return run

    def offer(self, attempt: int, run: Run) -> None:
        """Save if a save is due."""
        if self.every is None:
            due = time.monotonic() - self._saved_at >= self._pause
        else:
            due = run.done - self._saved_step >= self.every
        if hosts.largest(due):
            self.save(attempt, run)

    def save(self, attempt: int, run: Run) -> None:
        """Save now. A full or read-only disk gives one immediate warning and a note of the run; training continues.

        With several processes all contribute their parts of the state, and the first writes.
        """
        began = time.monotonic()
        document, arrays = _encoded(run)
        if not hosts.first():
            self._saved_at, self._saved_step = time.monotonic(), run.done
            return
        document |= self._who
        arrays |= self._coordinates
        path = self._path(attempt, run.done)
        try:
            self._restore_directory(run)
            _make_room(path)
            storage.write(path, document, arrays)
        except (StorageError, OSError, InputError) as error:
            if not self._failed:
                self._failed = True
                self._tell(run, f"no checkpoint at step {run.done}: {error}")
            return
        self._saved_at, self._saved_step, self._failed = time.monotonic(), run.done, False
        self._pause = max(PAUSE, (self._saved_at - began) / SHARE)
        self._prune(attempt, run.done)

    def _restore_directory(self, run: Run) -> None:
        """Make and lock the directory again if it was removed during the run, and say so.

        Raises `InputError` if another run has made it again, and uses it.
        """
        with suppress(FileNotFoundError):
            if self._locked is None or os.path.samestat(os.stat(self.directory), self._locked):
                return
        trouble = self._locks.enter_context(lock.locked(self.directory))
        self._locked = os.stat(self.directory) if trouble is None else None
        self._tell(
            run,
            f"{self.directory} was removed during the run, with the checkpoints in it; it was made again at step "
            f"{run.done:,}",
        )

    def _tell(self, run: Run, note: str) -> None:
        """Warn now, and keep the message in the run's notes."""
        run.warn(note)
        self.told.add(note)
        warn(note, TrainingWarning)

    def _prune(self, attempt: int, newest: int) -> None:
        """Remove saves made obsolete by the one of step `newest`: older ones, and those of steps that were rewound.

        A skipped save never displaces an intact one. It is kept until the run reaches the same step, since another
        version, or a later attempt, may be able to read it.
        """
        passed = self._passed.setdefault(attempt, set())
        passed.discard(newest)
        found = set(self._steps().get(attempt, ()))
        kept = sorted(step for step in found - passed if step <= newest)[-KEPT:]
        for step in found - {*kept, *(step for step in passed if step > newest)}:
            _remove(self._path(attempt, step))
        for earlier in range(attempt):
            passed = self._passed.get(earlier, set())
            for step in sorted(set(self._steps().get(earlier, ())) - passed)[:-1]:
                _remove(self._path(earlier, step))

    def _path(self, attempt: int, step: int) -> Path:
        return self.directory / f"attempt-{attempt}-step-{step}"

    def _steps(self) -> dict[int, list[int]]:
        """Return the steps of each attempt for which a checkpoint exists by name."""
        steps: dict[int, list[int]] = {}
        names = os.listdir(self.directory) if self.directory.is_dir() else []
        for name in names:
            if match := _NAME.fullmatch(name):
                steps.setdefault(int(match[1]), []).append(int(match[2]))
        return steps

    def _intact(
        self, attempt: int, passed: dict[int, Exception]
    ) -> Iterator[tuple[int, dict[str, Any], dict[str, np.ndarray]]]:
        """Yield the readable checkpoints of an attempt, newest first; add why others are not to `passed`."""
        for step in sorted(self._steps().get(attempt, ()), reverse=True):
            try:
                document, arrays = storage.read(self._path(attempt, step))
                _expect_form(document, arrays)
            except MALFORMED as error:
                passed[step] = error
                continue
            yield step, document, arrays

    def _check_same(self, document: Mapping[str, Any]) -> None:
        mine, theirs = self._who["identity"], document["identity"]
        other = [name for name, value in mine.items() if theirs.get(name) != value]
        known, found = self._who["probes"], document["probes"]
        if len(known) != len(found) or not np.allclose(
            known, found, PROBE_TOLERANCE, PROBE_TOLERANCE, equal_nan=True
        ):
            other.append("log-density")
        if other:
            raise OtherRunError(
                f"{self.directory} holds checkpoints of another run: {', '.join(other)} differ"
                f"{'s' * (len(other) == 1)}. Pass another directory, or call fit as that run did"
                " (a new version of JAX or gpvi may also change the program)."
            )


class Log(NamedTuple):
    """The checkpoints of one attempt of a run."""

    checkpoints: Checkpoints
    attempt: int

    def resumed(self, fresh: Run) -> Run:
        """Return the attempt as its newest checkpoint has it, or `fresh`."""
        return self.checkpoints.resumed(self.attempt, fresh)

    def offer(self, run: Run) -> None:
        """Save if a save is due."""
        self.checkpoints.offer(self.attempt, run)

    def save(self, run: Run) -> None:
        """Save now."""
        self.checkpoints.save(self.attempt, run)


def _as_directory(given: Any) -> Path:
    """Return the directory as a path; refuse anything that cannot be one."""
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise InputError(f"checkpoint is {brief(given)}; pass a directory, or omit it.")
    path = Path(name)
    try:
        path = path.expanduser()
        mode = path.stat().st_mode
    except FileNotFoundError:
        return path
    except NotADirectoryError:
        mode = stat.S_IFREG
    except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, nobody's home
        why = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise InputError(
            f"checkpoint is {name[:80]!r}, which cannot be a directory: {why}. Pass another."
        ) from error
    if not stat.S_ISDIR(mode):
        raise InputError(f"checkpoint is {name!r}, which is a file or below one; pass a directory.")
    return path


def _make_room(path: Path) -> None:
    """Remove anything under a checkpoint's reserved name that is not a save: a link, or a damaged save."""
    if path.is_symlink():
        path.unlink()
    try:
        storage.check_replaceable(path)
    except StorageError:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove anything under a checkpoint's reserved name, if possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _encoded(run: Run) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    document = {
        "done": run.done,
        "retries": run.retries,
        "notes": list(run.notes),
        "given_up": run.given_up,
        "seconds": run.seconds,
        "stopped": run.stopped,
        "assessed": [
            [at, list(each.importance), each.missing, each.outlook and list(each.outlook)]
            for at, each in run.assessed.items()
        ],
        "history": list(run.history()),
        "chunks": run.chunks(),
        "before": run.before is not None,
    }
    arrays = {f"history/{name}": values for name, values in run.history().items()}
    for prefix, tree in (("state", run.arrays), ("before", run.before)):
        for number, leaf in enumerate(jax.tree.leaves(tree)):
            arrays[f"{prefix}/{number}"] = _plain(leaf)
    return document, arrays


def _decoded(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], fresh: Run) -> Run:
    def tree(prefix: str) -> PyTree:
        leaves, structure = jax.tree.flatten(fresh.arrays)
        found = [arrays[f"{prefix}/{number}"] for number in range(len(leaves))]
        for new, old in zip(found, leaves, strict=True):
            if (new.shape, new.dtype) != (_plain(old).shape, _plain(old).dtype):
                raise StorageError("the arrays of the checkpoint do not match the method.")
        return jax.tree.unflatten(
            structure, [_like(new, old) for new, old in zip(found, leaves, strict=True)]
        )

    run = Run(tree("state"))
    run.before = tree("before") if document["before"] else None
    run.done, run.retries = document["done"], document["retries"]
    run.notes, run.given_up = list(document["notes"]), document["given_up"]
    run.seconds, run.stopped = document["seconds"], document["stopped"]
    run.assessed = {
        at: Assessment(Importance(*seen), missed, _outlook(*outlook))
        for at, seen, missed, *outlook in document["assessed"]
    }
    history = {name: arrays[f"history/{name}"] for name in document["history"]}
    run.restore(history, document["chunks"])
    return run


def _outlook(stored: Any = None) -> Outlook | None:
    if stored is None:
        return None
    mixing, gradients = stored
    return Outlook(None if mixing is None else str(mixing), int(gradients))


def _plain(leaf: Any) -> np.ndarray:
    """Return the leaf as an array of numbers; for keys, their data."""
    keys = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return hosts.gathered(jax.random.key_data(leaf) if keys else leaf)


def _like(array: np.ndarray, leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array)


_FORM: dict[str, type | tuple[type, ...]] = {
    "identity": dict,
    "probes": list,
    "start": list,
    "evidence": list,
    "done": int,
    "retries": int,
    "notes": list,
    "given_up": bool,
    "seconds": float,
    "stopped": (str, type(None)),
    "assessed": list,
    "history": list,
    "chunks": list,
    "before": bool,
}


def _expect_form(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse a document that `save` did not write."""
    for name, kind in _FORM.items():
        if not isinstance(document.get(name), kind):
            raise StorageError(f"{name!r} of the checkpoint is {document.get(name)!r}.")
    count, names = document["chunks"], (*document["history"], *document["notes"])
    if not all(type(each) is int and each >= 1 for each in count) or not all(
        isinstance(name, str) for name in names
    ):
        raise StorageError("the history of the checkpoint is not made of chunks.")
    if not all(isinstance(each, float) for each in document["probes"]):
        raise StorageError("the checkpoint lacks probes.")
    if not all(isinstance(text, str) for text in document["start"]):
        raise StorageError("the description of the start in the checkpoint is not text.")
    for seen in document["evidence"]:
        InitialEvidence.from_json(seen)
    semiseparable = {f"affine.scale.{field.name}" for field in dataclasses.fields(Semiseparable)}
    scale = semiseparable if semiseparable & arrays.keys() else {"affine.scale"}
    coordinates = {"affine.location", *scale} if document["start"] else set()
    needed = {*coordinates, *(f"history/{n}" for n in document["history"])}
    if not needed <= arrays.keys():
        raise StorageError("the checkpoint lacks arrays.")
    lengths = {arrays[f"history/{name}"].shape[-1:] for name in document["history"]}
    if not lengths <= {(document["done"],)} or sum(document["chunks"]) != document["done"]:
        raise StorageError("the history of the checkpoint does not match its step.")
