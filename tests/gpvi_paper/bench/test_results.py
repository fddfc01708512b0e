"""Results are kept and read back, and drawn."""

import numpy as np
import pytest

from gpvi.errors import StorageError
from gpvi_paper import records
from gpvi_paper.bench import Report, Result, Setting, results
from gpvi_paper.bench.chart import chart
from gpvi_paper.bench.timing import Timing


def report():
    made = Report("gpvi bench", records.environment(), records.now())
    made.results += [
        Result("svgd", "n = 10, d = 100", "gpvi", {"ms": 1.0}),
        Result("svgd", "n = 10, d = 1,000", "gpvi", {"ms": 9.0}),
        Result("svgd", "n = 10, d = 1,000", "a peer", {"ms": 90.0, "ratio": np.nan}, "gpvi"),
        Result("steps-blr", "d = 3", "GPVI", {"ms": 1.0, "ratio": 0.5}, "amortised SVGD"),
        Result("growth", "pathwise, d", "1,000", {"ms": 1.0}),
        Result("growth", "pathwise, d", "10,000", {"ms": 8.0}),
        Result("growth", "pathwise, d", "fitted", {"exponent": 0.9}),
        Result("roofline-mnist", "LeNet-5", "GPVI", {"ms": 2.0, "over floor": 1.7}),
    ]
    return made


def test_reports_are_read_as_written(tmp_path):
    made = report()
    found = results.read(made.write(tmp_path))
    assert found.environment == made.environment
    assert [r.values for r in found.results[:2]] == [r.values for r in made.results[:2]]
    assert np.isnan(found.results[2].values["ratio"])
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(StorageError, match="no report of gpvi bench"):
        results.read(tmp_path / "bench.json")


def test_a_picture_of_every_kind(tmp_path):
    path = chart(report().results, tmp_path)
    assert path is not None and path.read_bytes().startswith(b"\x89PNG")
    assert chart([Result("startup", "", "cold", {"s": 1.0})], tmp_path) is None


def test_the_ratio_of_a_result_is_to_what_it_is_compared_with():
    timings = {"ours": Timing((1.0, 2.0), 0.0, None), "theirs": Timing((3.0, 6.0), 0.0, None)}
    setting = Setting("svgd")
    assert setting.timed("row", "ours", timings).values.keys() == {"ms", "least ms", "compile s"}
    beside = setting.timed("row", "theirs", timings, "ours", {"draws/s": 5})
    assert (beside.case, beside.row, beside.against) == ("svgd", "row", "ours")
    assert (beside.values["ratio"], beside.values["draws/s"]) == (3, 5)
    assert timings["theirs"].per(3).turns == (1, 2)


def test_results_that_cannot_be_written_say_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="the results cannot be written"):
        report().write(tmp_path / "file")
