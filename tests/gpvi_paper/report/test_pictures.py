"""Every experiment with pictures draws them from its records, and none without their arrays."""

import dataclasses

import numpy as np

from gpvi_paper import records as records_module
from gpvi_paper import report
from gpvi_paper.experiments import EXPERIMENTS
from gpvi_paper.experiments.images.open_category import HISTOGRAM
from gpvi_paper.report.pictures import PICTURES
from made_records import made


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
