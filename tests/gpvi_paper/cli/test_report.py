"""`gpvi report` makes a page of records, past damaged and foreign files."""

from pathlib import Path

from typer.testing import CliRunner

from gpvi.cli import load_app
from gpvi_paper import records
from made_records import made


def call(*words):
    return CliRunner().invoke(load_app(), list(map(str, words)))


def test_a_page_is_made_past_damaged_and_foreign_files(tmp_path):
    records.write(made("energy", "GPVI (default)", "best"), tmp_path / "runs")
    (tmp_path / "runs" / "bad.json").write_text("{")
    (tmp_path / "runs" / "settings.json").write_text('{"a": 1}')
    result = call("report", tmp_path / "runs", "--out", tmp_path / "page")
    assert result.exit_code == 0
    page = Path(result.stdout.replace("\n", ""))
    assert page == tmp_path / "page" / "index.html"
    text = page.read_text("utf-8")
    assert "Four energy potentials" in text
    assert "1 damaged record omitted." in text
    assert "bad.json" in result.stderr
    assert "settings.json" not in result.stderr
    assert call("report", tmp_path / "runs" / "settings.json").exit_code == 2


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    result = call("report", tmp_path, "--out", tmp_path / "page")
    assert result.exit_code == 2
    assert "bad.json" in result.stderr
    assert not (tmp_path / "page").exists()
