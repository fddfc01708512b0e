"""A figure that a notebook draws by itself. This module needs Matplotlib: import it where a figure is made."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A Matplotlib figure that Jupyter shows although pyplot, which registers figures there, has not made it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()
