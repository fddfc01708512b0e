"""The report: one self-contained page, made from records alone."""

from gpvi.report.page import render as render
from gpvi.report.page import write as write
