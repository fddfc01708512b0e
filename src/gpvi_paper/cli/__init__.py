"""The commands that this package adds to `gpvi`: importing it registers them."""

from gpvi_paper.cli import bench as bench
from gpvi_paper.cli import list as list
from gpvi_paper.cli import run as run
