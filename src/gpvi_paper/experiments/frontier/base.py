"""Experiments on densities with known answers: the densities, and one result for each of them and each seed."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np

from gpvi_paper.experiments.base import Choice_co, Results, RunsCases
from gpvi_paper.experiments.frontier.densities import PUBLIC, Known
from gpvi_paper.experiments.frontier.hard import OURS

DENSITIES: dict[str, tuple[str, Callable[[], Known]]] = PUBLIC | OURS
SMOKE_CASES = ("two-far", "moons")


class OnDensities(RunsCases[Choice_co]):
    """An experiment whose cases are the densities."""

    cases = MappingProxyType({name: title for name, (title, _) in DENSITIES.items()})

    @abstractmethod
    def measured(self, results: Results[Choice_co], case: str, seed: int) -> dict[str, float]:
        """What is found on one density with one seed; metrics that are left out are unknown."""

    def problems(self, label: str, preset: str) -> Sequence[str]:
        """The densities; two of them under `smoke`."""
        every = SMOKE_CASES if preset == "smoke" else tuple(DENSITIES)
        return tuple(case for case in every if case in self.cases)

    def measure(self, results: Results[Choice_co]) -> None:
        """Measure on every density with every seed."""
        chosen = self.problems(results.label, results.preset)
        jobs = [(case, seed) for case in chosen for seed in results.seeds]
        blank = {metric.key: np.nan for metric in self.metrics}
        meter = results.meter()
        meter.start(len(jobs), self.name)
        try:
            for done, (case, seed) in enumerate(jobs):
                meter.update(done, f"{self.cases[case]}, seed {seed}")
                results.add(blank | self.measured(results, case, seed), case)
        finally:
            meter.close()
