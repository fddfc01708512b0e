"""Times of steps are compared in turns, and each row names what it is compared with."""

import numpy as np
import pytest

from gpvi import bnn
from gpvi_paper.experiments import experiment, overhead


def test_the_ratio_is_the_median_of_pairs():
    """A slow moment of the machine falls on both of a pair, and the median forgets a single odd one."""
    times = np.array([[1.0, 0.5], [4.0, 2.0], [2.0, 1.0], [9.0, 0.1], [2.0, 1.0]])
    found = overhead.summarised(times)
    assert found["ratio"] == pytest.approx(2)
    assert found["milliseconds"] == pytest.approx(2_000)
    assert found["baseline_milliseconds"] == pytest.approx(1_000)


@pytest.mark.parametrize("preset", ["paper", "best"])
def test_rows_and_their_baselines_share_generator_particles_and_batches(preset):
    for row in overhead.ROWS[preset].values():
        for name in row.sizes:
            size = overhead.SIZES[name]
            ours, theirs = row.method(size), row.baseline(size)
            assert ours.generator == theirs.generator
            assert ours.particles == theirs.particles
            assert theirs.batches == (ours.batches if ours.gradient == "functional" else 1)


def test_sizes_are_the_papers():
    networks = {
        "mnist": bnn.lenet5(),
        "cifar": bnn.Network.from_definition(overhead.SmallConvolutional()),
    }
    for name, size in overhead.SIZES.items():
        dim = networks[name].size if name in networks else size.target().dim
        assert f"d = {dim:,}" in size.title


def test_smoke(monkeypatch):
    monkeypatch.setattr(overhead, "SMALL", ("blr",))
    found = experiment("overhead").run("GPVI (pathwise)", "smoke", (0, 1), False)
    assert set(found.rows) == {f"blr/{m.key}" for m in overhead.StepOverhead.metrics}
    ratios, ours, theirs = (
        np.array(found.rows[f"blr/{key}"])
        for key in ("ratio", "milliseconds", "baseline_milliseconds")
    )
    assert (ratios > 0).all() and (ours > 0).all() and (theirs > 0).all()
    compiling = found.rows["blr/compile_seconds"]
    assert compiling[0] > 0 and np.isnan(compiling[1])
    assert set(found.specification["sizes"]) == {"blr"}
