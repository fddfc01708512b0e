"""`gpvi list` names methods, experiments and data."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gpvi.cli import load_app


def call(*words):
    return CliRunner().invoke(load_app(), list(map(str, words)))


@pytest.mark.parametrize("kind", [None, "methods", "experiments", "data", "blr"])
def test_list(kind):
    result = call("list", *([kind] if kind else []))
    assert result.exit_code == 0
    assert ("AmortizedSVGD" in result.stdout) == (kind in (None, "methods"))
    assert ("classification2" in result.stdout) == (kind in (None, "experiments"))
    assert ("gpvi-functional-exact-jacobian" in result.stdout) == (kind == "blr")
    assert ("posteriordb (Magnusson" in result.stdout) == (kind in (None, "data"))
    assert "…" not in result.stdout, "a word was cut off"


@pytest.mark.slow
def test_a_terminal_without_greek(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    line = [sys.executable, "-m", "gpvi", "list", "solvers"]
    done = subprocess.run(line, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and b"bicgstab" in done.stdout
