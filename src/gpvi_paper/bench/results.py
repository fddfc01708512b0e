"""What `gpvi bench` measures: one result per contender, and a report of all results that is kept as JSON."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpvi.errors import StorageError
from gpvi_paper import records
from gpvi_paper.bench.timing import Timing
from gpvi_paper.files import write_file

FORMAT = "gpvi-bench"
FILE = "bench.json"


@dataclasses.dataclass(frozen=True)
class Result:
    """The measurements of one contender in one row of a case."""

    case: str
    row: str
    """The problem and its size."""
    contender: str
    values: dict[str, float]
    """Each value by a name that includes its unit; "ratio" is the time of this contender over that of `against`."""
    against: str | None = None


@dataclasses.dataclass(frozen=True)
class Setting:
    """Which case is measured, and how."""

    case: str
    quick: bool = False
    """Whether sizes are tiny, to see that everything works."""
    peers: bool = False
    """Whether other libraries are measured, too."""
    seconds: float = 3.0
    """The time for the turns of one comparison."""
    only: frozenset[str] = frozenset()
    """The slugs of the requested rows; all rows if empty."""
    matched: set[str] = dataclasses.field(default_factory=set)
    """Those of the requested rows that the case turned out to have."""
    listed: list[str] | None = None
    """If there is a list, no row is measured, and the names of all are put there."""

    def wants(self, row: str) -> bool:
        """Return whether this row of the case was requested. A case asks before it computes anything for the row."""
        if self.listed is not None:
            self.listed.append(row)
            return False
        requested = not self.only or records.slug(row) in self.only
        if requested:
            self.matched.add(records.slug(row))
        return requested

    def result(
        self,
        row: str,
        contender: str,
        values: Mapping[str, float | int],
        against: str | None = None,
    ) -> Result:
        """Return a result of this case."""
        numbers = {name: float(value) for name, value in values.items()}
        return Result(self.case, row, contender, numbers, against)

    def timed(
        self,
        row: str,
        contender: str,
        timings: Mapping[str, Timing],
        against: str | None = None,
        more: Mapping[str, float | int] = MappingProxyType({}),
    ) -> Result:
        """Return the result of a contender that was timed.

        Parameters
        ----------
        row
            The problem and its size.
        contender
            Whose result it is.
        timings
            The timings of all contenders.
        against
            The contender to which the ratio of times is given, if any.
        more
            Further values.
        """
        timing = timings[contender]
        ratio = {} if against is None else {"ratio": timing.over(timings[against])}
        return self.result(row, contender, timing.values() | dict(more) | ratio, against)


@dataclasses.dataclass
class Report:
    """All results of a run of `gpvi bench`, and the machine it ran on."""

    command: str
    environment: records.Environment
    started: str
    results: list[Result] = dataclasses.field(default_factory=list)

    @classmethod
    def begin(cls, command: str) -> "Report":
        """Return an empty report of this process."""
        return cls(command, records.environment(), records.now())

    def of(self, case: str) -> list[Result]:
        """Return the results of one case."""
        return [result for result in self.results if result.case == case]

    def to_json(self) -> dict[str, Any]:
        """Return the report for JSON: numbers to six digits, and null for those that are not finite."""
        return {
            "format": FORMAT,
            "command": self.command,
            "started": self.started,
            "environment": dataclasses.asdict(self.environment),
            "results": [_encoded(result) for result in self.results],
        }

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Write the results so far into a directory, and return the path of the file."""
        path = Path(directory) / FILE
        write_file(
            path, json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n", "the results"
        )
        return path


def read(path: str | os.PathLike[str]) -> Report:
    """Read a report that `Report.write` wrote."""
    try:
        document = json.loads(Path(path).read_text("utf-8"))
        results = [_decoded(each) for each in document["results"]]
        environment = records.Environment(**document["environment"])
        return Report(document["command"], environment, document["started"], results)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is no report of gpvi bench: {error}.") from error


def _encoded(result: Result) -> dict[str, Any]:
    values = {
        name: records.significant(value) if math.isfinite(value) else None
        for name, value in result.values.items()
    }
    return dataclasses.asdict(result) | {"values": values}


def _decoded(document: dict[str, Any]) -> Result:
    values = {
        name: math.nan if value is None else float(value)
        for name, value in document["values"].items()
    }
    fields: dict[str, Any] = document | {"values": values}
    return Result(**fields)
