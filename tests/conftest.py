"""Fixtures of every test: keys that never repeat within a test, and double precision for the oracles."""

import gc
import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import jax
import pytest

from selection import PARTS, number, part

COMPUTING = "--xla_backend_optimization_level=1"
"""For tests that take minutes."""
COMPILING = "--xla_backend_optimization_level=0"
"""For tests that compile much and compute little."""
MOST_REGIONS = 30_000
"""Of memory, mapped by compiled programs, after which they are forgotten; each program takes several."""
OLDER_EMITTERS = "--xla_cpu_use_fusion_emitters=false"
"""Slower code, sooner: with it such tests take half of their time."""

hypothesis.settings.register_profile(
    "gpvi",
    hypothesis.settings(),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("gpvi")


def pytest_addoption(parser):
    parser.addoption(
        "--part",
        type=int,
        metavar="N",
        help=f"leave out the slow tests of all parts but one of {PARTS}; after the last comes the first again",
    )


def pytest_report_header(config):
    chosen = config.getoption("part")
    return None if chosen is None else f"slow tests: part {number(chosen)} of {PARTS}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keep the slow tests of the part that was asked for."""
    chosen = config.getoption("part")
    if chosen is None:
        return
    others = [
        item
        for item in items
        if item.get_closest_marker("slow") and part(item.nodeid) != number(chosen)
    ]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def pytest_configure(config):
    """Choose how XLA compiles, and which source the processes that tests start import.

    XLA reads its flags when the first array is made.
    """
    if hasattr(config, "workerinput"):
        return  # a worker has the environment of its parent
    flags = [os.environ.get("XLA_FLAGS", "")]
    flags.append(COMPUTING if config.getoption("markexpr") == "slow" else in_haste())
    os.environ["XLA_FLAGS"] = " ".join(flags)
    paths = [str(source()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def source() -> Path:
    """The folder of the `gpvi` under test, which is not imported yet: its array types are checked once it is."""
    found = importlib.util.find_spec("gpvi")
    assert found is not None and found.origin is not None
    return Path(found.origin).parents[1]


def in_haste() -> str:
    """The flags for what compiles much and computes little."""
    return f"{COMPILING} {OLDER_EMITTERS}" if known(OLDER_EMITTERS) else COMPILING


def known(flag: str) -> bool:
    """Whether XLA knows a flag: it ends the process that gives it another one."""
    probe = [sys.executable, "-c", "import jax; jax.numpy.zeros(1)"]
    environment = os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(probe, env=environment, capture_output=True, check=False).returncode == 0


def pytest_collection_finish():
    """What the imports have left behind need not be searched for garbage again and again."""
    gc.freeze()


@pytest.fixture(scope="session")
def hasty():
    """An environment for processes that compile much and compute little."""
    return os.environ | {"XLA_FLAGS": in_haste()}


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Forget compiled programs before they fill the process: Linux ends one with 65,530 mapped regions."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_REGIONS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def getkey():
    """A function that gives a new key at every call; the same ones in every run."""
    count = itertools.count()
    return lambda: jax.random.key(next(count))


@pytest.fixture
def unexplored(monkeypatch):
    """Nothing is explored, for tests of something else: each log-density would compile programs of its own for it."""
    monkeypatch.setattr("gpvi.exploration.search.explorable", lambda density: False)


@pytest.fixture(scope="module")
def x64():
    """Compute in float64 for a whole module: `pytestmark = pytest.mark.usefixtures("x64")`."""
    with jax.enable_x64(True):
        yield
