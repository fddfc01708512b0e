"""Turns, ratios and compilation, by contenders whose times are made up. No test asserts a measured time."""

import jax.numpy as jnp
import numpy as np

from gpvi_paper.bench.timing import Compiled, Contender, Timing, in_turns


class Clockwork:
    """Takes what it is told to."""

    compile_seconds, peak_bytes = 1.5, 2**20

    def __init__(self, *seconds):
        self.left = list(seconds)

    def turn(self):
        return self.left.pop(0)


def test_a_ratio_is_the_median_of_turns_side_by_side():
    ours, theirs = Clockwork(1.0, 4.0, 2.0, 9.0, 2.0), Clockwork(0.5, 2.0, 1.0, 0.1, 1.0)
    assert isinstance(ours, Contender)
    timings = in_turns({"ours": ours, "theirs": theirs}, seconds=0.0, least=5)
    assert timings["ours"].over(timings["theirs"]) == 2
    assert timings["ours"].seconds == 2
    values = timings["ours"].values()
    known = {"ms": 2000, "least ms": 1000, "compile s": 1.5, "peak MiB": 1}
    assert values == known | {"processor ms": values["processor ms"]}


def test_turns_stop_at_their_number():
    timings = in_turns({"one": Clockwork(*range(9))}, seconds=1e9, most=4)
    assert timings["one"].turns == (0, 1, 2, 3)


def test_a_function_is_compiled_once_and_keeps_its_result():
    traced = []

    def double(x):
        traced.append(1)
        return 2 * x

    program = Compiled(double, jnp.arange(3.0))
    assert program.turn() >= 0 and program.turn() >= 0
    assert len(traced) == 1
    np.testing.assert_array_equal(program.result, [0, 2, 4])
    assert program.peak_bytes is not None and program.peak_bytes >= 24


def test_timings_of_a_chunk_are_of_its_steps():
    assert Timing((1.0, 3.0, 2.0), 0.0, None).values() == {
        "ms": 2000,
        "least ms": 1000,
        "compile s": 0,
    }
