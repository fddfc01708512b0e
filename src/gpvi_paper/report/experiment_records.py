"""The records of one experiment, as the tables and charts of its section look them up."""

from collections.abc import Sequence

from gpvi_paper.experiments import PRESETS, Experiment, Published
from gpvi_paper.placing import SHOWN
from gpvi_paper.records import Record
from gpvi_paper.report.differences import Differences


class ExperimentRecords:
    """The records of one experiment, one for each method and preset.

    Parameters
    ----------
    experiment
        The experiment.
    records
        Its records.
    """

    def __init__(self, experiment: Experiment, records: Sequence[Record]):
        self.experiment = experiment
        self.records = records
        self.presets = [preset for preset in SHOWN if any(r.preset == preset for r in records)]
        self.metrics = {metric.key: metric for metric in experiment.metrics}
        self.differences = Differences(experiment, records)
        self._by_method = {(record.method, record.preset): record for record in records}
        order = [label for preset in PRESETS for label in experiment.recipes(preset)]
        order += [record.method for record in records]
        self.labels = list(dict.fromkeys([*order, *experiment.published]))
        """Every method, in the order of the experiment, then those that only the paper has."""

    def record(self, label: str, preset: str) -> Record | None:
        """Return the record of a method under a preset, if there is one."""
        return self._by_method.get((label, preset))

    def published(self, label: str, row: str) -> Published | None:
        """Return the paper's figure for a row of a method, if there is one."""
        return self.experiment.published.get(label, {}).get(row)

    def common_seeds(self, preset: str) -> int | None:
        """Return the number of seeds of a preset, if all of its records have the same."""
        counts = {len(record.seeds) for record in self.records if record.preset == preset}
        return counts.pop() if len(counts) == 1 else None
