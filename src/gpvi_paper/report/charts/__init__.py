"""The charts of the page, each drawn from plain arrays.

Start reading at `canvas.py`, which all of them use. Functions named `draw_…` draw on given axes, for figures elsewhere.
"""
