"""The bounds on dependencies are true: the library works with the lowest versions it allows, and with the newest."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import versions

ROOT = Path(__file__).parents[1]
LONGEST = 3_000
"""Seconds for an environment to be made and used, on a busy machine."""


def test_every_dependency_has_a_plain_lower_bound():
    pins = versions.lowest()
    assert len(pins) == len(versions.requirements()) > 15
    assert any(pin.startswith("jax==") for pin in pins)


def reachable() -> bool:
    """Whether pip finds packages."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "threadpoolctl"],
        capture_output=True,
        timeout=LONGEST,
        check=False,
    )
    return asked.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("which", ["lowest", "newest"])
def test_the_library_works_with_these_versions(which):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    if not reachable():
        pytest.skip("pip reaches no package index, from which other versions would be installed")
    made = subprocess.run(
        ["make", "--no-print-directory", f"test-{which}", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    parts = ["density", "model", "states", "pymc", "chains", "network"]
    assert made.stdout.split()[-len(parts) :] == parts
