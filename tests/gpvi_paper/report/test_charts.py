"""Charts keep their digits, and leave room for all methods."""

import re

from gpvi_paper.report.charts import dots


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
