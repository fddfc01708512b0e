"""The commands that this package adds to `gpvi`. Importing it registers them, and imports no experiment.

Start reading at `run.py` (`gpvi run`), then `_tables.py`, which prints a record.
"""

from gpvi_paper.cli import bench as bench
from gpvi_paper.cli import demo as demo
from gpvi_paper.cli import listing as listing
from gpvi_paper.cli import report as report
from gpvi_paper.cli import run as run
