"""What a run of the bench found: one result to a contender, kept as JSON that grows as the run goes."""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from gpvi.errors import StorageError
from gpvi.persistence.writing import atomic
from gpvi_paper import records

FORMAT = "gpvi-bench"
FILE = "bench.json"


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a case is run."""

    quick: bool = False
    """Tiny sizes, to see that everything works."""
    peers: bool = False
    """Other libraries, too."""
    seconds: float = 3.0
    """For the turns of one comparison."""
    only: frozenset[str] = frozenset()
    """The rows of the case that are wanted, by their slugs; all where empty."""

    met: set[str] = dataclasses.field(default_factory=set)
    """Those of them that the case turned out to have."""

    def wants(self, row: str) -> bool:
        """Whether a row that there is was asked for."""
        asked = not self.only or records.slug(row) in self.only
        if asked:
            self.met.add(records.slug(row))
        return asked


@dataclasses.dataclass(frozen=True)
class Result:
    """What was measured of one contender in one row of a case."""

    case: str
    row: str
    """The problem and its size."""
    contender: str
    values: dict[str, float]
    """Each named with its unit; "ratio" is this time over that of `against`."""
    against: str | None = None


@dataclasses.dataclass
class Report:
    """All results of a run, and where it took place."""

    command: str
    environment: records.Environment
    started: str
    results: list[Result] = dataclasses.field(default_factory=list)

    @classmethod
    def begin(cls, command: str) -> "Report":
        """An empty report of this process."""
        return cls(command, records.environment(), records.now())

    def of(self, case: str) -> list[Result]:
        """The results of one case."""
        return [result for result in self.results if result.case == case]

    def to_json(self) -> dict[str, Any]:
        """Numbers to six digits; what is not finite is null."""
        return {
            "format": FORMAT,
            "command": self.command,
            "started": self.started,
            "environment": dataclasses.asdict(self.environment),
            "results": [_encoded(result) for result in self.results],
        }

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Put all there is so far in the directory; a reader sees the file before or the file after."""
        path = Path(directory) / FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic(path) as part:
                part.write_text(json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            raise StorageError(
                f"the results cannot be written to {directory}: {error.strerror}. Choose another --out directory."
            ) from error
        return path


def read(path: str | os.PathLike[str]) -> Report:
    """A report that `Report.write` wrote."""
    try:
        document = json.loads(Path(path).read_text())
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
    words: dict[str, Any] = document | {"values": values}
    return Result(**words)
