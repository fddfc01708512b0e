"""The report: one self-contained HTML page, made from records alone.

Start reading at `page.py`, then `section.py` (one experiment) and `tables.py`. `pictures.py` says what an experiment
shows beside its tables; `charts` draws.
"""

from gpvi_paper.report.page import render as render
from gpvi_paper.report.page import write as write
