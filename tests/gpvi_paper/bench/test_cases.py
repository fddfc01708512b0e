"""Every case of the bench runs, on tiny sizes, and compares like with like."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi_paper.bench import CASES, Setting, measure
from gpvi_paper.bench.cases.particles import check_same_step
from gpvi_paper.bench.limits.roofline import PROBLEMS, methods
from gpvi_paper.experiments.overhead import SIZES


def test_the_generator_of_mnist_is_the_papers():
    method = methods(PROBLEMS["mnist"])["Amortized SVGD"]
    shapes = jax.eval_shape(
        lambda: method.generator.build(61_706, key=jax.random.key(0), dtype=jnp.float32)
    )
    sizes = [np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)]
    hidden = 257 * 256 + 257 * 512 + 513 * 1024
    assert sum(sizes) == hidden + 1025 * 61_706


def test_other_steps_are_not_compared():
    start, ours = jnp.zeros((2, 2)), jnp.ones((2, 2))
    check_same_step(ours, ours * (1 + 1e-5), start, "a peer")
    with pytest.raises(AssertionError, match="a peer takes another step"):
        check_same_step(ours, 1.1 * ours, start, "a peer")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_case_runs(name):
    found = list(measure(Setting(name, quick=True, peers=True, seconds=0.0)))
    assert found and all(r.case == name for r in found)


def test_the_cases_of_steps_and_limits_are_those_that_are_defined():
    """Their titles are written out, so that a list of the cases imports none of them."""
    beside = "a step of GPVI beside amortised SVGD"
    sizes = {f"steps-{name}": f"{beside}: {size.title}" for name, size in SIZES.items()}
    limits = "training steps beside the limits of the machine"
    problems = {f"roofline-{name}": f"{limits}: {each.title}" for name, each in PROBLEMS.items()}
    titles = {name: case.title for name, case in CASES.items() if "-" in name}
    assert sizes | problems == {n: t for n, t in titles.items() if n != "mesh-network"}


def test_a_list_of_the_cases_imports_none_of_them():
    code = "import sys, gpvi_paper.bench; print([m for m in sys.modules if '.cases' in m or '.limits' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
