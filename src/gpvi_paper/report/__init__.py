"""The report: one self-contained page, made from records alone."""

from gpvi_paper.report.page import render as render
from gpvi_paper.report.page import write as write
