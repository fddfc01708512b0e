"""A run that is stopped at any moment and called again ends as if it had never stopped, bit for bit."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import gpvi
from gpvi import initialization as start
from gpvi.errors import InputError, TrainingWarning
from gpvi.generators import Linear
from gpvi.persistence import format as storage
from gpvi.persistence import lock
from gpvi.training import checkpoint
from gpvi.training.fit import fit_seeds
from selection import some_slow

pytestmark = pytest.mark.filterwarnings("ignore:the (solver leaves|generator folds)")
"""A helper does not learn in a hundred steps."""
KEY = jax.random.key(3)
STEPS, CHUNK = 100, 2
METHODS = {
    "GPVI": gpvi.GPVI(generator=Linear(), particles=8),
    "helper": gpvi.GPVI(
        generator=gpvi.generators.Residual(hidden=(4,)),
        gradient="functional",
        solver="helper",
        particles=8,
    ),
    "AmortizedSVGD": gpvi.AmortizedSVGD(generator=Linear(), particles=8),
    "SVGD": gpvi.SVGD(particles=8),
    "MeanFieldVI": gpvi.MeanFieldVI(particles=8),
    "DeepEnsemble": gpvi.DeepEnsemble(members=3),
}
DATA = np.linspace(-1, 1, 12)
HANGS = 3_000
"""Seconds after which a process is taken to hang: many times what it needs on a busy machine."""


class Clock:
    """Stands for `time`, and stands still unless it is set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time passes for checkpoints only if a test says so: no save is made because a machine is slow."""
    made = Clock()
    monkeypatch.setattr(checkpoint, "time", made)
    return made


def log_likelihood(x, y):
    return -0.5 * jnp.square(y - x.sum())


def log_prior(x):
    return -0.5 * jnp.square(x).sum()


TARGET = gpvi.Target(log_likelihood=log_likelihood, log_prior=log_prior, data=DATA, dim=2)


def fit(method=METHODS["SVGD"], target=TARGET, **options):
    options = {
        "key": KEY,
        "steps": STEPS,
        "batch_size": 5,
        "init": None,
        "progress": False,
    } | options
    return gpvi.fit(target, method, **options)


def stop_at(step):
    def callback(event):
        if event.step >= step:
            raise StopIteration

    return callback


def unwarned(callbacks=(), **options):
    """A fit whose notes are looked at, not its warnings; and the steps after which it could be stopped."""
    steps: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        callbacks = [lambda event: steps.append(event.step), *callbacks]
        return fit(callbacks=callbacks, **options), steps


def bits(posterior) -> list[bytes]:
    leaves = jax.tree.leaves(eqx.filter(posterior.model, eqx.is_array))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def stopped(directory, step, **options) -> None:
    with pytest.warns(TrainingWarning, match="stopped by a callback"):
        fit(checkpoint=directory, callbacks=[stop_at(step)], **options)


@pytest.mark.parametrize("name", some_slow(METHODS, fast=("GPVI", "SVGD")))
def test_a_run_goes_on_bit_for_bit(name, tmp_path):
    whole = fit(METHODS[name])
    for step in (10, 50):
        stopped(tmp_path, step, method=METHODS[name])
    resumed = fit(METHODS[name], checkpoint=tmp_path)
    assert bits(resumed) == bits(whole)
    assert (resumed.training.steps, resumed.training.notes) == (STEPS, whole.training.notes)
    for term, values in whole.training.history.items():
        np.testing.assert_array_equal(values, resumed.training.history[term])


@pytest.mark.slow
def test_rounds_go_on_too(tmp_path):
    target = gpvi.Target(lambda x: x[0] - jnp.exp(x[0]), dim=1)
    method = gpvi.GPVI(particles=64)
    options = {"key": KEY, "progress": False}
    whole = gpvi.fit(target, method, **options)
    with pytest.warns(TrainingWarning, match="stopped by a callback"):
        gpvi.fit(target, method, checkpoint=tmp_path, callbacks=[stop_at(250)], **options)
    resumed = gpvi.fit(target, method, checkpoint=tmp_path, **options)
    assert bits(resumed) == bits(whole)
    assert resumed.training.chosen == whole.training.chosen
    assert resumed.start.report == whole.start.report


def test_a_finished_run_returns_at_once(tmp_path):
    done, steps = fit(checkpoint=tmp_path), []
    again = fit(checkpoint=tmp_path, callbacks=[lambda event: steps.append(event.step)])
    assert bits(again) == bits(done)
    assert not steps
    assert again.training.seconds == done.training.seconds


@pytest.fixture
def written(monkeypatch):
    """The steps whose checkpoints are written, in turn."""
    steps, write = [], storage.write

    def noted(path, *rest):
        steps.append(int(Path(path).name.split("-")[-1]))
        write(path, *rest)

    monkeypatch.setattr(storage, "write", noted)
    return steps


def test_saves_are_every_so_often_and_few_stay(written, tmp_path):
    fit(checkpoint=tmp_path, every=20)
    assert written == [20, 40, 60, 80, 100, 100]
    assert sorted(os.listdir(tmp_path)) == ["attempt-0-step-100", "attempt-0-step-80"]


@pytest.mark.parametrize(
    ("writing", "expected"), [(0, [20, 40, 60, 80, 100, 100]), (5, [20, 56, 92, 100])]
)
def test_saves_are_made_by_the_clock_unless_told_otherwise(
    writing, expected, clock, written, tmp_path, monkeypatch
):
    """A step takes 3 s: after 60 s a save is due, or, if saving takes 5 s, after 100 s."""
    write = storage.write

    def slow(*words):
        clock.now += writing
        write(*words)

    def tick(event):
        clock.now = 3.0 * event.step

    assert (checkpoint.PAUSE, checkpoint.SHARE) == (60, 0.05)
    monkeypatch.setattr(storage, "write", slow)
    fit(checkpoint=tmp_path, callbacks=[tick])
    assert written == expected


@pytest.mark.parametrize(
    ("what", "changed"),
    {
        "key": {"key": jax.random.key(4)},
        "number of steps": {"steps": 2 * STEPS},
        "batch size": {"batch_size": 6},
        "method": {"method": gpvi.SVGD(particles=9)},
        "program": {"optimizer": optax.adam(0.3)},
        "init": {"init": jnp.ones((8, 2))},
        "data": {
            "target": gpvi.Target(
                log_likelihood=log_likelihood, log_prior=log_prior, data=DATA + 1, dim=2
            )
        },
        "log-density": {
            "target": gpvi.Target(
                log_likelihood=log_likelihood,
                log_prior=lambda x: 2 * log_prior(x),
                data=DATA,
                dim=2,
            )
        },
    }.items(),
)
def test_another_run_is_refused(what, changed, tmp_path):
    fit(checkpoint=tmp_path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(InputError, match=f"another run: .*{what}"):
        fit(checkpoint=tmp_path, **changed)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_target_of_another_dimension_or_precision_is_refused(tmp_path):
    options = {"batch_size": None, "steps": 2}
    gaussian = lambda x: -0.5 * jnp.square(x).sum()  # noqa: E731
    fit(target=gpvi.Target(gaussian, dim=2), checkpoint=tmp_path, **options)
    for other in (gpvi.Target(gaussian, dim=3), gpvi.Target(gaussian, dim=2, dtype="float64")):
        with pytest.raises(InputError, match=r"another run: .*program"):
            fit(target=other, checkpoint=tmp_path, **options)


def test_a_checkpoint_that_lacks_an_array_is_passed_over(tmp_path):
    whole = fit()
    stopped(tmp_path, 60, every=20)
    newest = tmp_path / "attempt-0-step-60"
    document, arrays = storage.read(newest)
    storage.write(newest, document, {n: a for n, a in arrays.items() if n != "state/0"})
    with pytest.warns(TrainingWarning, match="step 60 is damaged and was skipped"):
        resumed = fit(checkpoint=tmp_path)
    assert bits(resumed) == bits(whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [("probes", checkpoint.PROBES * [10**400]), ("seconds", 10**400)],
    ids=("probes", "seconds"),
)
def test_a_checkpoint_with_an_integer_beyond_all_floats_is_passed_over(name, value, tmp_path):
    whole = fit()
    stopped(tmp_path, 60, every=20)
    newest = tmp_path / "attempt-0-step-60"
    document, arrays = storage.read(newest)
    storage.write(newest, document | {name: value}, arrays)
    with pytest.warns(TrainingWarning, match="step 60 is damaged and was skipped"):
        resumed = fit(checkpoint=tmp_path)
    assert bits(resumed) == bits(whole)


DAMAGES = ("truncate", "flip", "empty", "directory", "foreign")


@pytest.mark.parametrize("damage", some_slow(DAMAGES, fast=("truncate", "flip")))
def test_a_damaged_checkpoint_is_passed_over(damage, tmp_path):
    whole = fit()
    stopped(tmp_path, 60, every=20)
    newest = tmp_path / "attempt-0-step-60"
    content = newest.read_bytes()
    newest.unlink()
    if damage == "truncate":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "empty":
        newest.touch()
    elif damage == "directory":
        newest.mkdir()
    else:
        storage.write(newest, {"done": "all"}, {})
    with pytest.warns(TrainingWarning, match="step 60 is damaged and was skipped"):
        resumed = fit(checkpoint=tmp_path)
    assert bits(resumed) == bits(whole)


def damage_all(directory) -> None:
    for name in os.listdir(directory):
        os.truncate(directory / name, 100)


def test_saves_after_damaged_ones_stay(tmp_path):
    """Damaged saves of later steps take no good one's place, are told once, and are replaced when their step comes."""
    whole = fit(checkpoint=tmp_path, every=20)
    damage_all(tmp_path)
    damaged = {"attempt-0-step-80", "attempt-0-step-100"}

    def crash(event):
        if event.step == 60:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fit(checkpoint=tmp_path, every=20, callbacks=[crash])
    assert set(os.listdir(tmp_path)) == damaged | {"attempt-0-step-40", "attempt-0-step-60"}
    resumed, steps = unwarned(checkpoint=tmp_path, every=20)
    assert steps[0] == 60 + CHUNK
    assert bits(resumed) == bits(whole)
    assert ["is damaged and was skipped" in note for note in resumed.training.notes] == [True] * 2
    assert set(os.listdir(tmp_path)) == damaged
    for name in damaged:
        storage.read(tmp_path / name)


def test_the_newest_good_save_of_an_earlier_attempt_stays(tmp_path):
    """Though one that was skipped, here of step 30, is of a later step."""
    for name in ("0-step-10", "0-step-20", "0-step-30", "1-step-2", "1-step-4", "1-step-6"):
        (tmp_path / f"attempt-{name}").mkdir()
    saves = checkpoint.Checkpoints(tmp_path)
    saves._passed = {0: {30}}
    saves._prune(1, 6)
    left = {"0-step-20", "0-step-30", "1-step-4", "1-step-6"}
    assert set(os.listdir(tmp_path)) == {f"attempt-{name}" for name in left}


@pytest.mark.parametrize("left", ["empty", "zeros", "directory", "link"])
def test_what_is_at_a_save_s_own_name_is_replaced(left, tmp_path):
    stopped(tmp_path / "saves", 20)
    place, elsewhere = tmp_path / "saves" / "attempt-0-step-20", tmp_path / "elsewhere"
    place.unlink()
    if left == "directory":
        place.mkdir()
        (place / ".DS_Store").write_text("")
    elif left == "link":
        place.symlink_to(elsewhere)
    else:
        place.write_bytes(b"" if left == "empty" else bytes(64))
    posterior, _ = unwarned(checkpoint=tmp_path / "saves", callbacks=[stop_at(20)])
    assert "step 20 is damaged" in posterior.training.notes[0]
    storage.read(place)
    assert not place.is_symlink()
    assert not elsewhere.exists()


def test_a_link_that_cannot_be_replaced_is_not_followed(tmp_path, monkeypatch):
    place, elsewhere = tmp_path / "saves" / "attempt-0-step-20", tmp_path / "elsewhere"
    place.parent.mkdir()
    place.symlink_to(elsewhere)
    unlink = Path.unlink

    def refused(path, **options):
        if path == place:
            raise PermissionError(13, "Permission denied")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", refused)
    posterior, _ = unwarned(checkpoint=place.parent, callbacks=[stop_at(20)])
    assert "no checkpoint at step 20: [Errno 13] Permission denied" in posterior.training.notes[1]
    assert not elsewhere.exists()


def test_a_run_that_gave_up_before_its_newest_save_stays_so(tmp_path):
    """The save of a step that was taken back goes, and with it the way back to before the halvings."""
    walled = gpvi.Target(lambda x: jnp.where(x @ x < 9, -50 * (x - 1) @ (x - 1), jnp.nan), dim=2)
    rate = lambda count: jnp.where(count < 41, 0.0, 1e6)  # noqa: E731
    options = {"target": walled, "optimizer": optax.sgd(rate), "batch_size": None}
    options |= {"method": METHODS["MeanFieldVI"], "checkpoint": tmp_path, "every": CHUNK}
    given_up, steps = unwarned(**options)
    assert "after 8 halvings" in given_up.training.notes[-1]
    assert (given_up.training.steps, max(steps)) == (40, 42)
    again, steps = unwarned(**options)
    assert not steps
    assert again.training.notes == given_up.training.notes
    assert os.listdir(tmp_path) == ["attempt-0-step-40"]


def test_a_disk_that_refuses_is_told_and_training_goes_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    def tell(event):
        told.append((event.step, len(seen)))

    told: list[tuple[int, int]] = []
    monkeypatch.setattr(storage, "sync", full)
    with pytest.warns(TrainingWarning, match="no checkpoint at step 20.*No space left") as seen:
        posterior = fit(checkpoint=tmp_path, every=20, callbacks=[tell])
    assert bits(posterior) == bits(fit())
    assert dict(told)[22] == len(seen) == 1, "at once, once"
    assert "no checkpoint at step 20" in posterior.training.notes[0]
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("every", [0, -1, True])
def test_a_bad_interval_is_refused(every, tmp_path):
    with pytest.raises(InputError, match="every is"):
        fit(checkpoint=tmp_path, every=every)


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "here").write_text("")
    with pytest.raises(InputError, match="is a file"):
        fit(checkpoint=tmp_path / "here")


def test_foreign_names_in_the_directory_are_left_alone(tmp_path):
    (tmp_path / "attempt-x-step-3").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    fit(checkpoint=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "attempt-x-step-3").is_dir()


def test_a_state_that_failed_goes_back_as_it_would_have(tmp_path):
    """The NaN policy holds through resumes: the retreat after the stop is the one of the whole run."""
    walled = gpvi.Target(lambda x: jnp.where(x @ x < 9, -50 * (x - 1) @ (x - 1), jnp.nan), dim=2)
    rate = lambda count: jnp.where(count < 40, 0.0, 1.0)  # noqa: E731
    options = {"target": walled, "optimizer": optax.sgd(rate), "batch_size": None}
    stopped(tmp_path, 40, method=METHODS["GPVI"], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        whole = fit(METHODS["GPVI"], **options)
        resumed = fit(METHODS["GPVI"], checkpoint=tmp_path, **options)
    assert "half the step size" in whole.training.notes[0]
    assert bits(resumed) == bits(whole)
    assert resumed.training.notes == whole.training.notes


def test_probes_tell_densities_apart():
    with TARGET.precision():
        mine = checkpoint.probes(TARGET)
        assert mine == checkpoint.probes(TARGET)
        other = gpvi.Target(
            log_likelihood=log_likelihood, log_prior=lambda x: 0.0, data=DATA, dim=2
        )
        assert not np.allclose(mine, checkpoint.probes(other))


SCRIPT = textwrap.dedent("""
    import os, sys
    import jax, jax.numpy as jnp, numpy as np
    import gpvi

    directory, number, when, method = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    method = {"SVGD": gpvi.SVGD(particles=8), "MeanFieldVI": gpvi.MeanFieldVI(particles=8),
              "GPVI": gpvi.GPVI(generator=gpvi.generators.Linear(), particles=8)}[method]
    target = gpvi.Target(lambda x: -0.5 * jnp.square(x).sum(), dim=2)
    calls = 0

    def tick(event=None):
        global calls
        calls += 1
        if calls == when:
            os.kill(os.getpid(), number)

    sync = os.fsync
    os.fsync = lambda file: (sync(file), tick())  # within a save, before and after its rename
    found = gpvi.fit(target, method, key=jax.random.key(0), steps=100, init=None, progress=False,
                     checkpoint=directory, every=2, callbacks=[tick])
    leaves = jax.tree.leaves(found.model)
    print(b"".join(np.asarray(a).tobytes() for a in leaves if hasattr(a, "dtype")).hex())
""")


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    """Starts the script in a process of its own; all share what was compiled."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def start(directory, method: str, number: int = 0, when: int = -1) -> subprocess.Popen:
        words = [str(directory), str(number), str(when), method]
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | cache,
        )

    return start


def result(process: subprocess.Popen) -> str:
    output, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 0, errors
    return output.split()[-1]


def nothing_is_half_written(directory) -> None:
    """Every checkpoint can be read, though a process died; what it left is under names that are none."""
    for name in os.listdir(directory) if directory.is_dir() else []:
        if name.startswith("attempt"):
            storage.read(directory / name)
        else:
            assert name == lock.NAME or storage.TEMPORARY.fullmatch(name)


@pytest.mark.slow
def test_default_gpvi_killed_within_a_round_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """In the middle of the first round, which has 500 steps."""
    step = 260
    bent = gpvi.Target(lambda x: -0.5 * (x[0] ** 2 + ((x[1] - x[0] ** 2) / 0.3) ** 2), dim=2)
    options = {"steps": None, "batch_size": None, "init": "auto", "method": None, "target": bent}
    whole = fit(**options)
    assert whole.training.steps > 260

    class KilledError(BaseException):
        """What no code of the library catches."""

    write = storage.write

    def fused(path, *rest):
        write(path, *rest)
        if int(str(path).split("-")[-1]) >= step:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write", fused)
        with pytest.raises(KilledError):
            fit(checkpoint=tmp_path, every=20, **options)
    assert 0 < min(int(name.split("-")[-1]) for name in os.listdir(tmp_path)) < step + 20
    resumed = fit(checkpoint=tmp_path, every=1_000, **options)
    assert bits(resumed) == bits(whole)
    assert resumed.training.steps == whole.training.steps


@pytest.mark.slow
def test_killed_at_any_moment_a_run_ends_the_same(child, tmp_path):
    """Once in a callback and once within a save."""
    target = gpvi.Target(lambda x: -0.5 * jnp.square(x).sum(), dim=2)
    whole = gpvi.fit(
        target, gpvi.SVGD(particles=8), key=jax.random.key(0), steps=100, init=None, progress=False
    )
    directory = tmp_path / "killed"
    for moment in (7, 40):
        killed = child(directory, "SVGD", signal.SIGKILL, moment)
        killed.communicate(timeout=HANGS)
        assert killed.returncode == -signal.SIGKILL
        nothing_is_half_written(directory)
    assert result(child(directory, "SVGD")) == b"".join(bits(whole)).hex()
    assert sorted(os.listdir(directory)) == ["attempt-0-step-100", "attempt-0-step-98"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["SVGD", "MeanFieldVI", "GPVI"])
def test_killed_ten_times_a_run_ends_the_same(method, child, tmp_path):
    """In callbacks and within saves; a run that ends before its moment ends right, and another begins."""
    rng = np.random.default_rng(len(method))
    whole = result(child(tmp_path / "whole", method))
    kills, runs = 0, 0
    while kills < 10:
        process = child(tmp_path / str(runs), method, signal.SIGKILL, rng.integers(1, 60))
        output, errors = process.communicate(timeout=HANGS)
        nothing_is_half_written(tmp_path / str(runs))
        if process.returncode == -signal.SIGKILL:
            kills += 1
        else:
            assert output.split()[-1] == whole, errors
            runs += 1
        assert runs <= kills, "no run is shorter than the latest moment"
    assert result(child(tmp_path / str(runs), method)) == whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_run_saves_and_says_how_to_go_on(number, tmp_path, capsys):
    """Ctrl-C returns what there is, and a request to end ends the process, with a word on how to go on."""
    assert threading.current_thread() is threading.main_thread()

    def end(event):
        if event.step == 40:
            os.kill(os.getpid(), number)

    if number == signal.SIGTERM:
        with pytest.raises(SystemExit, match="143"):
            fit(checkpoint=tmp_path, callbacks=[end])
        assert "step 40 of 100; the same call goes on" in capsys.readouterr().err
    else:
        with pytest.warns(TrainingWarning, match="step 40 of 100; the same call goes on"):
            fit(checkpoint=tmp_path, callbacks=[end])
    assert os.listdir(tmp_path) == ["attempt-0-step-40"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_directory_is_one_run_s_at_a_time(tmp_path):
    """The second is refused while the first trains; afterwards the directory is free."""

    def again(event):
        with pytest.raises(InputError, match=f"in use by another run, process {os.getpid()}"):
            fit(checkpoint=tmp_path)
        raise StopIteration

    with pytest.warns(TrainingWarning, match="stopped by a callback"):
        fit(checkpoint=tmp_path, callbacks=[again])
    assert os.listdir(tmp_path) == ["attempt-0-step-2"]


def test_a_lock_of_a_dead_process_is_none(tmp_path):
    (tmp_path / lock.NAME).write_text("1")
    with lock.locked(tmp_path) as trouble:
        assert trouble is None
    assert not os.listdir(tmp_path)


def test_a_directory_that_is_made_again_is_locked_again(tmp_path):
    def remove(event):
        if event.step == 40:
            shutil.rmtree(tmp_path)
        if event.step == 70:
            with pytest.raises(InputError, match=f"in use by another run, process {os.getpid()}"):
                fit(checkpoint=tmp_path)

    with pytest.warns(TrainingWarning, match="was removed during the run"):
        fit(checkpoint=tmp_path, every=20, callbacks=[remove])
    assert lock.NAME not in os.listdir(tmp_path)


def test_a_directory_that_another_run_has_taken_is_left_to_it(tmp_path):
    """It was removed, and made again by another run: this one trains to its end, and saves nothing there."""
    taken = contextlib.ExitStack()

    def take(event):
        if event.step == 40:
            shutil.rmtree(tmp_path)
            taken.enter_context(lock.locked(tmp_path))

    with taken:
        with pytest.warns(TrainingWarning, match="no checkpoint at step 40.* in use by another"):
            posterior = fit(checkpoint=tmp_path, every=20, callbacks=[take])
        assert os.listdir(tmp_path) == [lock.NAME]
    assert posterior.training.steps == STEPS


def test_a_lock_file_removed_by_hand_lets_nobody_in(tmp_path):
    with lock.locked(tmp_path):
        (tmp_path / lock.NAME).unlink()
        with pytest.raises(InputError, match="in use by another run"), lock.locked(tmp_path):
            pass
    with lock.locked(tmp_path) as trouble:
        assert trouble is None
    assert not os.listdir(tmp_path)


LOCKS = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from gpvi.persistence import lock

    with lock.locked(Path(sys.argv[1])):
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)
        time.sleep(600)
""")


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", LOCKS, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        with (
            pytest.raises(InputError, match=f"process {parent.pid}"),
            lock.locked(tmp_path),
        ):
            pass
        parent.kill()
        parent.wait(timeout=HANGS)
        with lock.locked(tmp_path) as trouble:
            assert trouble is None
    finally:
        parent.kill()
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / ".gpvi-0123456789abcdef.tmp"
    left.write_bytes(b"half")
    (tmp_path / ".gpvi-mine.tmp").mkdir()
    fit(checkpoint=tmp_path)
    assert not left.exists()
    assert (tmp_path / ".gpvi-mine.tmp").exists()


def test_a_directory_that_vanishes_is_made_again(tmp_path):
    def remove(event):
        if event.step == 40:
            shutil.rmtree(tmp_path / "saves")

    with pytest.warns(TrainingWarning, match="saves was removed during the run.* at step 40"):
        posterior = fit(checkpoint=tmp_path / "saves", every=20, callbacks=[remove])
    assert len(posterior.training.notes) == 1
    resumed, _ = unwarned(checkpoint=tmp_path / "saves")
    assert bits(resumed) == bits(posterior)


def test_a_file_that_may_not_grow_is_told_and_training_goes_on(tmp_path):
    """A quota, in short: the system refuses what is written beyond a limit, in the middle of a save."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(event):
        if event.step == 50:
            resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))

    try:
        with pytest.warns(TrainingWarning, match="no checkpoint at step 60"):
            posterior = fit(checkpoint=tmp_path, every=20, callbacks=[limit])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert posterior.training.steps == STEPS
    assert sorted(os.listdir(tmp_path)) == ["attempt-0-step-20", "attempt-0-step-40"]
    assert bits(fit(checkpoint=tmp_path)) == bits(posterior)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file/saves", "is a file or below one"),
        ("x" * 300, "File name too long"),
        ("a\0b", "null byte"),
        ("~nobody-at-all/x", "home"),
        ("", "pass a directory"),
        (b"saves", "pass a directory"),
        (3, "pass a directory"),
    ],
)
def test_what_cannot_be_a_directory_is_refused(name, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=rf"checkpoint is .*{why}"):
        fit(checkpoint=name)
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(InputError, match="cannot be created: Read-only file system"):
        fit(checkpoint=tmp_path / "saves")


def test_a_directory_that_cannot_be_locked_is_told_before_training(tmp_path, monkeypatch):
    """A read-only one, say; of that the superuser would not notice."""

    def refused(_):
        raise OSError(30, "Read-only file system")

    def tell(event):
        told.append(len(seen))

    told: list[int] = []
    monkeypatch.setattr(lock, "_acquire", refused)
    with pytest.warns(TrainingWarning, match="cannot be locked: Read-only") as seen:
        fit(checkpoint=tmp_path, callbacks=[tell])
    assert (told[0], len(seen)) == (1, 1)
    assert seen[0].filename == __file__


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    posterior = fit(checkpoint="~/saves")
    posterior.save("~/model")
    assert sorted(os.listdir(tmp_path)) == ["model", "saves"]
    assert bits(gpvi.load("~/model")) == bits(posterior)


@pytest.mark.slow
def test_seeds_side_by_side_go_on_too(tmp_path, monkeypatch):
    targets = [
        gpvi.Target(log_likelihood=log_likelihood, log_prior=log_prior, data=DATA + i, dim=2)
        for i in range(2)
    ]
    options = {"key": KEY, "steps": STEPS, "batch_size": 5, "progress": False}
    method = METHODS["SVGD"]
    whole = [bits(each) for each in fit_seeds(targets, method, **options)]
    save, saves = checkpoint.Checkpoints.save, []

    def save_and_stop(self, attempt, run):
        save(self, attempt, run)
        saves.append(run.done)
        if len(saves) == 1:
            raise StopIteration

    monkeypatch.setattr(checkpoint.Checkpoints, "save", save_and_stop)
    options |= {"checkpoint": tmp_path, "every": 20}
    with pytest.warns(TrainingWarning, match="stopped by a callback"):
        stopped = fit_seeds(targets, method, **options)
    assert stopped[0].training.steps == 20
    monkeypatch.setattr(start, "automatic", None)  # the start is that of the save
    found = fit_seeds(targets, method, **options)
    assert [bits(each) for each in found] == whole
    assert [each.start.report for each in found] == [each.start.report for each in stopped]
    with pytest.raises(InputError, match=r"another run: .*data"):
        fit_seeds([targets[0], targets[0]], method, **options)


def test_every_field_of_a_run_is_saved():
    """A field added to `Run` must be added to checkpoints."""
    from gpvi.training.recovery import Run

    assert set(vars(Run({}))) == {
        "arrays",
        "before",
        "done",
        "retries",
        "notes",
        "given_up",
        "stopped",
        "assessed",
        "seconds",
        "_record",
    }
