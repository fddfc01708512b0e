"""The page holds every number and picture of its records, asks for nothing from outside, and displays."""

import base64
import dataclasses
import html
import html.parser
import math
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

from gpvi_paper import records as records_module
from gpvi_paper import report
from gpvi_paper.experiments import EXPERIMENTS
from gpvi_paper.experiments.base import Published
from gpvi_paper.experiments.images.open_category import HISTOGRAM
from gpvi_paper.records import Summary
from gpvi_paper.report import page as page_module
from gpvi_paper.report.charts import dots
from gpvi_paper.report.differences import differs
from gpvi_paper.report.pictures import PICTURES
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


class TestDifferences:
    @pytest.mark.parametrize(
        ("ours", "published", "differ"),
        [
            ((0.4, 0.2), Published(0.1, 0.05), True),
            ((0.4, 0.2), Published(0.16, 0.05), False),
            ((0.4, 0.2), Published(0.16, 0.05, "known"), True),
            ((0.4, math.nan), Published(0.3, 0.05), True),
            ((0.9934, math.nan), Published(0.993, math.nan), False),
            ((0.9936, math.nan), Published(0.993, math.nan), True),
            ((0.0, 0.0), Published(0.0, 0.0), False),
        ],
    )
    def test_are_beyond_the_spreads(self, ours, published, differ):
        mean, sd = ours
        assert differs(Summary(mean, sd, 3), published) == differ

    def test_have_their_reason_on_the_page(self, page):
        reason = EXPERIMENTS["blr"].published["SVGD"]["mean_error_samples"].reason
        assert html.escape(reason) in page
        letter = re.search(r'0\.4 .{1,40}<a class="why" href="#(blr-why-a)">a</a>', page)
        assert letter
        assert f'<li id="{letter[1]}"><b>μ error of SVGD.</b>' in page

    def test_that_nobody_explains_are_called_so(self):
        """The covariance error of amortised KSD has no reason; 20 ± 10 is not 0.43 ± 0.10."""
        page = report.render([made("blr", "Amortized KSD", "paper", value=10.0)])
        assert "<b>Σ error of Amortized KSD.</b> Not explained.</li>" in page

    def test_are_not_sought_where_the_figures_agree_or_the_preset_is_another(self, page):
        agree = report.render([made("blr", "Deep ensemble", "paper", value=1e-3)])
        assert "Σ error of Deep ensemble" in agree
        assert 'class="why"' not in report.render([made("blr", "SVGD", "best")])


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
        timeout=120,
        check=True,
    )
    title = re.search(r"<title>(\d+) (\d+) (\d+) (\d+) (\d+)</title>", done.stdout)
    assert title, done.stdout[:500]
    scroll, visible, broken, images, cut = map(int, title.groups())
    assert scroll <= visible
    assert (broken, images, cut) == (0, 12, 0)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count('<th scope="row">SVGD') == 2


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
    assert page_module._number(Summary(2 / 3, 0.5, 3), passed) == "2 of 3"


def test_one_remark_of_several_methods_is_made_once(records):
    said = [dataclasses.replace(r, notes=("the same",)) for r in records if r.experiment == "blr"]
    notes = page_module.Section(EXPERIMENTS["blr"], said)._notes()
    assert notes.count("the same</li>") == len({r.preset for r in said}) < len(said)


def test_no_more_digits_than_mean_anything():
    """Seeds 12345, 24690, 37035 have commas; a deviation of rounding alone does not call for eight digits."""
    assert "24,690 " in report.render([made("solvers", "dense", "best", value=12_345.0)])
    record = made("solvers", "dense", "best")
    rows = dict.fromkeys(record.rows, (62.4456, 62.4456, 62.445601))
    assert "62.446 " in report.render([dataclasses.replace(record, rows=rows)])


def test_numbers_on_axes_keep_their_digits():
    """Coordinates are cut to hundredths, labels are not."""
    lines = {name: [dots.Mark("best", (0.001, 0.0025))] for name in "ab"}
    drawing = dots.dot_chart(lines, "error", None, "digits")
    assert re.search(r">0\.001\d*</text>", drawing)
    assert not re.search(r'(?<=["\s])-?\d+\.\d{3,}', re.sub(r">[^<]*<", "><", drawing))


def test_a_method_far_off_leaves_room_for_the_others():
    near = {f"m{i}": [dots.Mark("best", (i - 2.0,))] for i in range(6)}
    far = near | {"far": [dots.Mark("best", (3e9,))]}
    assert "3e+09 →" in dots.dot_chart(far, "NLL", None, "far")
    assert "→" not in dots.dot_chart(near, "NLL", None, "near")


class TestPictures:
    def test_of_the_solvers(self):
        record = made("solvers", "BiCGSTAB", "best")
        line = tuple(10.0**-i for i in range(40))
        curves = {
            name: records_module.Curve(tuple(range(10, 410, 10)), (line,) * 3)
            for name in ("product_error", "residual", "covariance_error")
        }
        arrays = {"residual_by_iteration": np.array([1.0, 0.1, 1e-7, 0.0])}
        full = dataclasses.replace(record, curves=curves, arrays=arrays)
        page = report.render([full])
        assert page.count("<svg") == 4
        assert "Residual of BiCGSTAB" in page
        assert "During training" not in report.render([dataclasses.replace(record, curves={})])

    def test_of_predictions_along_a_line(self):
        grid = np.linspace(-1, 1, 20)
        line = {"mean": grid, "sd": grid**2, "reference_mean": grid, "reference_sd": grid**2}
        data = np.stack([grid, grid], 1)
        page = self.with_arrays("regression1d", {"grid": grid, **line, "truth": grid, "data": data})
        assert page.count("<figcaption>reference</figcaption>") == 1
        assert "Predictions of the first seed" in page

    def test_of_maps(self):
        sd = np.outer(np.hanning(12), np.hanning(12))
        arrays = {
            "map": sd,
            "reference_map": 2 * sd,
            "inputs": np.zeros((5, 2)),
            "labels": np.arange(5.0) % 4,
            "half_width": np.array(10.0),
        }
        page = self.with_arrays("classification4", arrays)
        assert page.count("data:image/png") == 2, "the reference and the method"
        assert f"from none to {2 * sd.max():.2f} at full colour" in page

    def test_of_outliers_and_calibration(self):
        case = next(iter(EXPERIMENTS["mnist"].cases))
        shares = np.full(len(HISTOGRAM) - 1, 1 / (len(HISTOGRAM) - 1))
        bins = np.stack([np.linspace(0.1, 0.9, 5), np.linspace(0.2, 0.8, 5), np.full(5, 0.2)])
        arrays = {
            f"{case}/inlier_scores": shares,
            f"{case}/outlier_scores": shares[::-1],
            f"{case}/reliability": bins,
        }
        page = self.with_arrays("mnist", arrays)
        assert "Outliers and calibration" in page
        assert "ECE 0.060" in page
        assert "AUROC 0.125" in page

    def test_of_the_collapse(self):
        (figure,) = PICTURES["collapse"](
            EXPERIMENTS["collapse"], [made("collapse", "SVGD", "best")]
        )
        assert "theory for SVGD" in figure

    def with_arrays(self, name, arrays):
        """The pictures of the experiment's first row, with these arrays; there are none without any."""
        found = EXPERIMENTS[name]
        record = made(name, next(iter(found.recipes("best"))), "best")
        assert not list(PICTURES[name](found, [dataclasses.replace(record, arrays={})]))
        return "".join(PICTURES[name](found, [dataclasses.replace(record, arrays=arrays)]))

    def test_what_the_paper_says_nothing_of_is_not_called_its(self):
        page = report.render([made("drift", "pathwise", "best")])
        assert ">Beyond the paper; " in page
        solvers = report.render([made("solvers", "dense", "best")])
        assert "In the paper: Appendix C; " in solvers

    def test_a_figure_without_deviation(self):
        page = report.render([made("overhead", "GPVI (functional, helper)", "paper")])
        assert rows_of(page)["GPVI (functional, helper)"] is not None
        assert ">1.28</span></td>" in page
        assert "± nan" not in page
