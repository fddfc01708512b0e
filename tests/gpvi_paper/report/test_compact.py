"""Lines of charts lose characters, and nothing that can be seen."""

import io
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpvi_paper.report.charts import canvas, planes

coordinate = st.floats(-500, 500, allow_nan=False).map(lambda x: round(x, 6))
lines = st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=40)


def drawn(path):
    """The points of a compacted line."""
    points = []
    for command, numbers in re.findall(r"([Ml])([^Mlz]*)", path):
        steps = np.array(numbers.split(), float).reshape(-1, 2)
        points += [steps[0]] if command == "M" else list(points[-1] + np.cumsum(steps, 0))
    return np.array(points)


def distance(point, line):
    """Of a point to a line of straight pieces."""
    if len(line) == 1:
        return np.hypot(*(point - line[0]))
    start, step = line[:-1], np.diff(line, axis=0)
    length = np.maximum((step**2).sum(1), 1e-12)
    along = np.clip(((point - start) * step).sum(1) / length, 0, 1)
    return np.hypot(*(start + along[:, None] * step - point).T).min()


@given(lines)
def test_no_point_is_visibly_off_the_line(points):
    text = "M " + "\nL ".join(f"{x:.6f} {y:.6f}" for x, y in points)
    line = drawn(canvas.compact(text))
    assert all(distance(np.array(p), line) <= canvas.UNSEEN + 0.15 for p in points)
    np.testing.assert_allclose(line[[0, -1]], [points[0], points[-1]], atol=0.0501)


def test_a_straight_line_has_two_points_and_a_closed_one_stays_closed():
    assert canvas.compact("M 0 0 \nL 1 1 \nL 2 2 \nL 3 3") == "M0 0l3 3"
    assert canvas.compact("M 0 0 \nL 4 0 \nL 4 4 \nz").endswith("z")


def test_curves_are_left_as_they_are():
    path = "M 1.2345 0 \nC 2 0 3.5678 1 3 2 \nz"
    assert canvas.compact(path) == "M1.23 0C2 0 3.56 1 3 2z"


def test_round_markers_are_circles_and_groups_that_say_nothing_are_gone():
    sizes = [10.0, 90.0, 40.0]
    with canvas.figure(2.0, 2.0) as (figure, axes):
        axes.scatter([0, 1, 2], [0, 1, 2], s=sizes, marker="o", linewidths=0)
        axes.scatter([0, 1, 2], [2, 1, 0], s=sizes, marker="^", linewidths=0)
        text = canvas.svg(figure)
    radii = [float(r) for r in re.findall(r'<circle cx="[\d.]+" cy="[\d.]+" r="([\d.]+)"', text)]
    np.testing.assert_allclose(radii, np.sqrt(sizes) / 2, atol=0.02)
    assert text.count("<path d=") >= 3, "triangles are none"
    assert "<g>" not in text and text.count("<g ") == text.count("</g>")
    assert canvas.rounded("M0 0C1 0 2 1 3 2z") == ""


def pixels(image):
    with Image.open(io.BytesIO(image)) as picture:
        return np.asarray(picture.convert("RGBA")).astype(int)


def test_a_picture_keeps_its_shades_in_a_palette():
    """One colour in every opacity: no banding."""
    with canvas.figure(1.0, 1.0) as (figure, axes):
        canvas.bare(figure, axes)
        axes.imshow(canvas.tinted(np.linspace(0, 1, 100)[None] * np.ones((100, 1))))
        plain = canvas.png(figure)
    small = canvas.few_colours(plain)
    assert len(small) < len(plain)
    assert abs(pixels(small) - pixels(plain)).max() <= 2
    few = canvas.few_colours(plain, 8)
    assert len(np.unique(pixels(few).reshape(-1, 4), axis=0)) <= 8


def test_panels_are_transparent_where_nothing_is():
    draws = np.zeros((5, 2))
    corner = pixels(planes.draws_panel(np.outer(np.hanning(9), np.hanning(9)), draws, 2.0))[0, 0]
    assert corner[3] == 0
