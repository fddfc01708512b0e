"""Every experiment from the command line, by its two main methods under `--preset smoke`, to a page of them."""

import math
import subprocess
import sys

import pytest

from gpvi_paper import records
from gpvi_paper.experiments import EXPERIMENTS
from gpvi_paper.experiments.base import ReadsData
from made_data import write_cifar, write_mnist, write_posteriordb, write_uci

MAIN = {
    "density": ("GPVI (pathwise)", "Amortized SVGD"),
    "blr": ("GPVI (pathwise)", "SVGD"),
    "energy": ("GPVI (default)", "Planar flow"),
    "regression1d": ("GPVI (pathwise)", "SVGD"),
    "classification4": ("GPVI (pathwise)", "Deep ensemble"),
    "classification2": ("GPVI (pathwise)", "Deep ensemble"),
    "mnist": ("GPVI (pathwise)", "Deep ensemble"),
    "cifar10": ("GPVI (pathwise)", "Deep ensemble"),
    "digits": ("GPVI (pathwise)", "Deep ensemble"),
    "solvers": ("helper", "BiCGSTAB"),
    "overhead": ("GPVI (functional, helper)", "GPVI (functional, exact Jacobian)"),
    "drift": ("functional", "pathwise"),
    "collapse": ("GPVI (full-rank generator)", "SVGD"),
    "posteriordb": ("GPVI (default)", "NUTS"),
    "gallery": ("GPVI (default)", "NUTS"),
    "frontier": ("GPVI (default)", "SMC"),
    "witness": ("Islands",),
    "spikes": ("Islands",),
    "uci": ("GPVI (pathwise)", "Deep ensemble"),
}
WRITERS = {
    "mnist": lambda folder: write_mnist(folder, train=100),
    "cifar10": lambda folder: write_cifar(folder, each=10),
    "posteriordb": write_posteriordb,
    "uci": lambda folder: write_uci(folder / "yacht"),
}


def command(environment, *words):
    """`gpvi` in a process of its own."""
    line = [sys.executable, "-m", "gpvi", *map(str, words)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_experiment_is_left_out():
    assert set(MAIN) == set(EXPERIMENTS)
    assert set(WRITERS) == {n for n, found in EXPERIMENTS.items() if isinstance(found, ReadsData)}
    assert all(set(labels) <= set(EXPERIMENTS[n].recipes("smoke")) for n, labels in MAIN.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_two_methods_run_and_are_shown(name, hasty, tmp_path):
    data, runs, page = (tmp_path / part for part in ("data", "runs", "page"))
    options = ["--preset", "smoke", "--seeds", 1, "--out", runs]
    options += [word for label in MAIN[name] for word in ("--method", records.slug(label))]
    if name in WRITERS:
        WRITERS[name](data)
        options += ["--data-dir", data]
    command(hasty, "run", name, *options)
    found = records.find([runs])
    assert sorted(record.method for record in found) == sorted(MAIN[name])
    known = {metric.key for metric in EXPERIMENTS[name].metrics}
    for record in found:
        assert {row.rpartition("/")[2] for row in record.rows} <= known
        assert any(math.isfinite(value) for values in record.rows.values() for value in values)
    command(hasty, "report", runs, "--out", page)
    text = (page / "index.html").read_text("utf-8")
    assert all(label in text for label in MAIN[name])
