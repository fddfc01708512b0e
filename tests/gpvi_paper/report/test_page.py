"""The page holds every number and picture of its records, asks for nothing from outside, and displays."""

import base64
import dataclasses
import html
import html.parser
import re
import shutil
import struct
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from gpvi_paper import report
from gpvi_paper.experiments import EXPERIMENTS
from gpvi_paper.records import Summary, search
from gpvi_paper.report import tables
from made_records import made

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def records():
    return [
        made("blr", "SVGD", "paper", value=0.2),
        made("blr", "SVGD", "best"),
        made("blr", "GPVI (pathwise)", "best", value=0.01),
        made("energy", "GPVI (default)", "best", seeds=1),
        made("energy", "GPVI (functional, exact Jacobian)", "paper", fold=0.3),
    ]


@pytest.fixture(scope="module")
def page(records):
    return report.render(records)


class Reader(html.parser.HTMLParser):
    """Checks that elements nest, and collects the rows of tables, links and identifiers."""

    VOID = ("meta", "link", "img", "br", "path", "use", "rect", "hr")

    def __init__(self, page):
        super().__init__()
        self.open, self.rows, self.attributes = [], [], []
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def rows_of(page):
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in Reader(page).rows}


def test_paper_and_presets_stand_side_by_side(page):
    """Seeds 0.125, 0.25, 0.375: mean 0.25, sd 0.125; 0.2, 0.4, 0.6: mean 0.4, sd 0.2."""
    cells = rows_of(page)["SVGD"]
    assert cells[:3] == ["0.006 ± 0.0024", "0.4 ± 0.2a", "0.25 ± 0.12"]
    assert cells[3] == "0.125 ± 0.03"


def test_the_number_of_seeds_is_in_the_header_or_where_it_differs(records, page):
    assert "n = 3" not in rows_of(page)["SVGD"][1]
    mixed = report.render([*records, made("blr", "GFSF", "best", seeds=2)])
    rows = rows_of(mixed)
    assert rows["SVGD"][2] == "0.25 ± 0.12n = 3"
    assert rows["GFSF"][2].endswith("n = 2")


def test_methods_that_only_the_paper_has_are_shown_as_missing(page):
    assert rows_of(page)["HMC"] == ["0.009 ± 0.0003", "—", "—", "0.181 ± 0.05", "—", "—"]


def test_figures_of_a_folded_generator_are_struck_out(page):
    for case in ("Twin moons", "Sin split"):
        assert case in page
    struck = re.findall(r"<s title=[^>]*>", page)
    assert len(struck) == 2 * 4, "KL and ESS of four potentials"
    assert 'class="badge best"' in page


def test_pictures_are_embedded(page):
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(images) == 4 * 3, "a target and two methods for each potential"
    for image in images:
        content = base64.b64decode(image, validate=True)
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert width == height > 200
    assert page.count("<svg") == page.count("</svg>") >= 4


def test_nothing_is_asked_from_outside(page):
    assert "http:" not in page
    assert "https:" not in page
    assert not re.search(r"<script|@import|<iframe|url\((?!#)", page)
    for name, value in Reader(page).attributes:
        if name in ("src", "href", "xlink:href", "srcset"):
            assert value.startswith(("data:", "#")), value


def test_references_meet_exactly_one_identifier(page):
    attributes = Reader(page).attributes
    names = [value for name, value in attributes if name == "id"]
    assert len(names) == len(set(names))
    wanted = {v[1:] for n, v in attributes if n in ("href", "xlink:href") and v.startswith("#")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", page))
    assert wanted <= set(names)


def test_text_from_records_is_escaped(page):
    assert "a &lt;note&gt; &amp; more" in page
    assert "<note>" not in page


def test_provenance_of_every_record(page, records):
    for record in records:
        assert record.command in page
    assert page.count("commit 0123456789ab") == len(records)
    assert "2 CPUs, device cpu" in page


def test_charts_take_the_colour_of_the_text(page):
    svg = page[page.index("<svg") : page.rindex("</svg>")]
    assert "currentColor" in svg
    assert "#010203" not in svg


def test_older_records_are_left_out_and_said_so(records):
    older = dataclasses.replace(records[1], started="2020-01-01T00:00:00+00:00", command="older")
    page = report.render([older, records[1]])
    assert "older</code>" not in page
    assert "1 older record of the same runs omitted" in page


def test_a_record_of_an_unknown_experiment_does_not_stop_the_page(records):
    page = report.render([records[0], dataclasses.replace(records[0], experiment="<future>")])
    assert "unknown experiments omitted: &lt;future&gt;" in page


def test_the_same_records_give_the_same_page(records, page):
    assert report.render(records) == page


@pytest.mark.slow
def test_the_page_of_all_records_is_small():
    """Below 4 MB, with every heading in order."""
    results = Path(__file__).parents[3] / "results"
    page = report.render(search([results]).records)
    assert len(page.encode()) < 4_000_000
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1200, 500])
def test_the_page_displays(records, tmp_path, width):
    """No sideways scrolling, no table cut off, every image loaded, nothing on the console, the rows there."""
    path = report.write(records, tmp_path)
    probe = (
        "<script>addEventListener('load', () => { const d = document.documentElement; "
        "const broken = [...document.images].filter(i => !i.naturalWidth).length; "
        "const cut = [...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length; "
        "document.title = [d.scrollWidth, d.clientWidth, broken, document.images.length, cut].join(' '); })</script>"
    )
    path.write_text(path.read_text("utf-8").replace("</body>", f"{probe}</body>"), "utf-8")
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"),
        *("--virtual-time-budget=4000", f"--user-data-dir={tmp_path / 'profile'}"),
        *("--enable-logging=stderr", "--log-level=0"),
    ]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    title = re.search(r"<title>(\d+) (\d+) (\d+) (\d+) (\d+)</title>", done.stdout)
    assert title, done.stdout[:500]
    scroll, visible, broken, images, cut = map(int, title.groups())
    assert scroll <= visible
    assert (broken, images, cut) == (0, 12, 0)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count('<th scope="row">SVGD</th>') == 2


def test_columns_without_a_figure_are_left_out(records, page):
    """The paper prints no residual; the other metrics of that table keep its column."""
    head = next(row for row in Reader(page).rows if row and row[0].startswith("paper’s figure"))
    assert [cell.startswith("paper’s") for cell in head].count(True) == 2
    assert len(head) == 8, (
        "two metrics by paper, paper and best, and the residual by paper and best"
    )


def test_every_cell_says_what_it_is_where_columns_have_no_room(page):
    names = [value for name, value in Reader(page).attributes if name == "data-name"]
    assert {"μ error, paper’s figure", "μ error, ours, paper", "μ error, ours, best"} <= set(names)
    assert page.count("<td") == len(names)


def test_very_small_and_large_numbers_are_powers_of_ten():
    page = report.render([made("solvers", "dense", "best", value=2e-8)])
    assert "(4.0 ± 2.0) · 10<sup>−8</sup>" in page
    assert "0.000000" not in page
    page = report.render([made("solvers", "dense", "best", value=2e12)])
    assert "(4.0 ± 2.0) · 10<sup>12</sup>" in page
    assert "0000000" not in page


def test_every_metric_of_a_table_is_explained_and_has_its_arrow(page):
    for experiment in (EXPERIMENTS["blr"], EXPERIMENTS["energy"]):
        shown = {key for table in experiment.tables for key in table.metrics}
        for metric in experiment.metrics:
            if metric.key in shown:
                said = f"</dt><dd>{html.escape(metric.meaning)}</dd>"
                assert said in page or metric.key == "residual"
    assert '<dt>ESS <span class="way">↑</span></dt>' in page
    assert '<dt>Σ error <span class="way">↓</span></dt>' in page


def test_yes_and_no_are_counted():
    passed = next(m for m in EXPERIMENTS["posteriordb"].metrics if m.key == "passed")
    assert tables._number(Summary(2 / 3, 0.5, 3), passed) == "2 of 3"


def test_one_remark_of_several_methods_is_made_once(records):
    said = [dataclasses.replace(r, notes=("the same",)) for r in records if r.experiment == "blr"]
    notes = report.render(said)
    assert notes.count("the same</li>") == len({r.preset for r in said}) < len(said)


def test_no_more_digits_than_mean_anything():
    """Seeds 12345, 24690, 37035 have commas; a deviation of rounding alone does not call for eight digits."""
    assert "24,690 " in report.render([made("solvers", "dense", "best", value=12_345.0)])
    record = made("solvers", "dense", "best")
    rows = dict.fromkeys(record.rows, (62.4456, 62.4456, 62.445601))
    assert "62.446 " in report.render([dataclasses.replace(record, rows=rows)])


def test_what_the_paper_says_nothing_of_is_not_called_its():
    page = report.render([made("drift", "pathwise", "best")])
    assert ">Beyond the paper; " in page
    solvers = report.render([made("solvers", "dense", "best")])
    assert "In the paper: Appendix C; " in solvers


def test_a_figure_without_deviation():
    page = report.render([made("overhead", "GPVI (functional, helper)", "paper")])
    assert rows_of(page)["GPVI (functional, helper)"] is not None
    assert ">1.28</span></td>" in page
    assert "± nan" not in page
