"""`gpvi bench` measures the requested rows and keeps what it measured."""

import json

import numpy as np
import pytest

from gpvi.cli import load_app
from gpvi.errors import UnknownOptionError
from gpvi_paper.bench import CASES, Setting, results
from gpvi_paper.cli import bench


def test_which_rows_are_wanted():
    wanted = bench._wanted(["svgd/n = 10, d = 100", "growth", "growth/pathwise, d"], list(CASES))
    assert wanted == {"svgd": {"n-10-d-100"}, "growth": frozenset()}
    assert Setting("svgd", only=wanted["svgd"]).wants("n = 10, d = 100")
    assert not Setting("svgd", only=wanted["svgd"]).wants("n = 10, d = 1,000")
    with pytest.raises(UnknownOptionError, match="svgd"):
        bench._wanted(["svg"], list(CASES))


@pytest.mark.slow
def test_through_the_command_line(tmp_path, capsys):
    """Tiny sizes; a peer's step is checked to be ours before it is timed."""
    rows = ["ceilings", "svgd/n-5-d-8", "steps-blr/pathwise"]
    command = ["bench", "--quick", "--peers", "--json", "--seconds", "0", "--out", str(tmp_path)]
    for row in rows:
        command += ["--case", row]
    with pytest.raises(SystemExit, match="0"):
        load_app()(command)
    printed = capsys.readouterr()
    shown = json.loads(printed.out)
    assert "no row" not in printed.err
    kept = results.read(tmp_path / "bench.json")
    assert len(shown["results"]) == len(kept.results)
    contenders = {(r.case, r.contender) for r in kept.results}
    assert ("svgd", "BlackJAX SVGD") in contenders and ("svgd", "NumPyro SteinVI") in contenders
    assert ("steps-blr", "GPVI (pathwise)") in contenders
    assert {r.case for r in kept.results} == {"ceilings", "svgd", "steps-blr"}
    assert all(np.isfinite(list(r.values.values())).all() for r in kept.results)
    assert (tmp_path / "bench.png").exists()


def test_a_row_that_is_not_there_is_named_and_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "bench.json").write_text("former results")
    with pytest.raises(SystemExit, match="2"):
        load_app()(["bench", "--quick", "--case", "svgd/no-such-row", "--out", str(tmp_path)])
    assert "svgd has no row 'no-such-row'" in capsys.readouterr().err
    assert (tmp_path / "bench.json").read_text() == "former results"
