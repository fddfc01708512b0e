"""Posteriors with reference draws: posteriordb, with NUTS and NumPyro's guides for comparison.

Start reading at `posteriordb.py`, then `peers.py`, the other library's methods.
"""
