"""Posteriors that are hard to explore, with known answers: public benchmark densities, and unpleasant ones of our own.

Start reading at `densities.py` (what a density is, and the public ones), then `verdicts.py` (the experiment).
"""
