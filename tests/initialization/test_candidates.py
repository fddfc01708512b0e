"""Where paths start."""

import itertools

import numpy as np

from gpvi.initialization._candidates import Far, Missed, Near, candidates


def test_paths_begin_in_turn_where_little_is_known():
    """Missed, far, missed, near; each far direction twice, and each further than the one before."""
    plan = list(itertools.islice(candidates(3, 32, np.random.default_rng(0)), 31))
    assert all(isinstance(one, Missed) for one in plan[::2])
    assert [type(one) for one in plan[1::2]] == [Far, Near] * 7 + [Far]
    far = [one for one in plan if isinstance(one, Far)]
    near = [one for one in plan if isinstance(one, Near)]
    assert [one.distance for one in far] == [16, -16, 32, -32, 64, -64, 128, -128]
    pairs = zip(far[::2], far[1::2], strict=True)
    assert all(np.array_equal(one.direction, other.direction) for one, other in pairs)
    directions = np.stack([one.direction for one in far[::2] + near])
    assert len(np.unique(directions, axis=0)) == 4 + 7
    assert np.allclose((directions**2).sum(1), 3)
