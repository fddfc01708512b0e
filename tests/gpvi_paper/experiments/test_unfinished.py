"""A row that is interrupted goes on where it stopped, and ends as if it had not been."""

import jax
import numpy as np
import pytest

import gpvi
from gpvi.methods import MeanFieldVI
from gpvi_paper.experiments.unfinished import next_place, resumable

STEPS = 40


class Meter:
    """Counts its looks, and interrupts at the last of so many."""

    def __init__(self, most: int | None = None):
        self.looks, self._most = 0, most

    def start(self, total: int, label: str) -> None:
        """Nothing to show."""

    def update(self, done: int, message: str) -> None:
        """A look after a chunk of steps."""
        chunk = message.startswith("elbo ")
        self.looks += chunk
        if chunk and self.looks == self._most:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Nothing to close."""


def row(progress: bool | Meter = False) -> list[np.ndarray]:
    """Two fits, one after the other."""
    target = gpvi.Target(lambda x: -0.5 * (x**2).sum(), dim=2)
    found = [
        gpvi.fit(
            target,
            MeanFieldVI(particles=4),
            key=jax.random.key(number),
            steps=STEPS,
            init=None,
            progress=progress,
            checkpoint=next_place(),
        )
        for number in range(2)
    ]
    return [np.asarray(one.sample(3, key=jax.random.key(9))) for one in found]


def test_a_row_goes_on_where_it_was_interrupted(tmp_path):
    place = tmp_path / "row"
    whole = row()
    with pytest.raises(KeyboardInterrupt), resumable(place):
        row(Meter(STEPS + STEPS // 2))
    assert sorted(path.name for path in place.iterdir()) == ["fit-0", "fit-1"]
    rest = Meter()
    with resumable(place):
        again = row(rest)
    np.testing.assert_array_equal(again, whole)
    assert rest.looks <= STEPS // 2
    assert not place.exists()


def test_nothing_is_saved_where_nobody_asks():
    assert next_place() is None
